//! The servers that are called: nginx, and a socket whose every answer a test writes byte by byte.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

/// One request as it came.
#[derive(Clone, Debug, Default)]
pub(crate) struct Asked {
    pub(crate) line: String,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Asked {
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.iter().find(|(known, _)| known == name).map_or("", |(_, value)| value)
    }

    /// Reads one request; none where the connection has ended.
    pub(crate) fn read(stream: &mut BufReader<TcpStream>) -> Option<Asked> {
        let mut asked = Asked::default();
        stream.read_line(&mut asked.line).ok().filter(|read| *read > 0)?;
        loop {
            let mut line = String::new();
            stream.read_line(&mut line).ok()?;
            let Some((name, value)) = line.trim_end().split_once(": ") else { break };
            asked.headers.push((name.to_ascii_lowercase(), value.to_owned()));
        }
        asked.body = vec![0; asked.header("content-length").parse().unwrap_or(0)];
        stream.read_exact(&mut asked.body).ok()?;
        Some(asked)
    }
}

/// A server whose answers a test writes; it ends with the process.
pub(crate) struct Handler {
    pub(crate) address: SocketAddr,
    asked: Arc<Mutex<Vec<Asked>>>,
    connections: Arc<Mutex<usize>>,
}

impl Handler {
    /// `answer` gets each request, the number it has on its connection and the stream; false closes the connection.
    pub(crate) fn new(answer: impl Fn(&Asked, usize, &mut TcpStream) -> bool + Send + Sync + 'static) -> Handler {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (asked, connections) = (Arc::<Mutex<Vec<Asked>>>::default(), Arc::<Mutex<usize>>::default());
        let (answer, heard, counted) = (Arc::new(answer), Arc::clone(&asked), Arc::clone(&connections));
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (answer, heard) = (Arc::clone(&answer), Arc::clone(&heard));
                *counted.lock().unwrap() += 1;
                std::thread::spawn(move || {
                    let mut stream = stream.unwrap();
                    let mut reader = BufReader::new(stream.try_clone().unwrap());
                    for number in 1.. {
                        let Some(request) = Asked::read(&mut reader) else { return };
                        heard.lock().unwrap().push(request.clone());
                        if !answer(&request, number, &mut stream) {
                            return;
                        }
                    }
                });
            }
        });
        Handler { address, asked, connections }
    }

    /// Always the same words.
    pub(crate) fn saying(answer: &'static str) -> Handler {
        Handler::new(move |_, _, stream| stream.write_all(answer.as_bytes()).is_ok())
    }

    pub(crate) fn asked(&self) -> Vec<Asked> {
        self.asked.lock().unwrap().clone()
    }

    pub(crate) fn connections(&self) -> usize {
        *self.connections.lock().unwrap()
    }
}

/// `200` with this body.
pub(crate) fn fine(stream: &mut TcpStream, body: &str) -> bool {
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
    stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body.as_bytes())).is_ok()
}

/// A real nginx on a free port of the loopback interface.
pub(crate) struct Nginx {
    child: Child,
    pub(crate) port: u16,
    dir: tempfile::TempDir,
}

impl Nginx {
    /// `locations` goes into its only server.
    pub(crate) fn start(locations: &str, tls: bool) -> Nginx {
        let dir = tempfile::tempdir().unwrap();
        let port = crate::ports::free_port();
        let here = dir.path().display();
        let (secure, keys) = match tls {
            true => (" ssl", format!("ssl_certificate {here}/cert.pem; ssl_certificate_key {here}/key.pem;")),
            false => ("", String::new()),
        };
        if tls {
            let words = "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost \
                         -addext subjectAltName=DNS:localhost -addext basicConstraints=critical,CA:FALSE";
            let mut command = Command::new("openssl");
            command.args(words.split(' ')).args(["-keyout", "key.pem", "-out", "cert.pem"]).current_dir(dir.path());
            let made = command.stderr(Stdio::null()).status().unwrap();
            assert!(made.success(), "openssl makes a certificate");
        }
        let temp = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"];
        let temp: String = temp.iter().map(|kind| format!("{kind}_temp_path {here}/{kind};")).collect();
        let config = format!(
            "daemon off; master_process off; pid {here}/pid; error_log {here}/error.log;
             events {{ worker_connections 512; }}
             http {{ access_log off; {temp} server {{ listen 127.0.0.1:{port}{secure}; {keys} {locations} }} }}"
        );
        std::fs::write(dir.path().join("nginx.conf"), config).unwrap();
        let child = Command::new("nginx")
            .args(["-p", &here.to_string(), "-c", &format!("{here}/nginx.conf")])
            .stderr(Stdio::null())
            .spawn()
            .unwrap_or_else(|e| panic!("this test needs nginx (package nginx-light): {e}"));
        let mut nginx = Nginx { child, port, dir };
        nginx.wait_until_it_listens();
        nginx
    }

    fn wait_until_it_listens(&mut self) {
        while TcpStream::connect(("127.0.0.1", self.port)).is_err() {
            if let Some(status) = self.child.try_wait().unwrap() {
                let log = std::fs::read_to_string(self.dir.path().join("error.log")).unwrap_or_default();
                panic!("nginx ended with {status}: {log}");
            }
            std::thread::yield_now();
        }
    }

    pub(crate) fn certificate(&self) -> std::path::PathBuf {
        Path::new(self.dir.path()).join("cert.pem")
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        let _gone_already = self.child.kill();
        let _gone_already = self.child.wait();
    }
}
