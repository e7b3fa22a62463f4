//! URLs through the whole program: the examples of their page sent and answered, and what the config refuses.

use crate::rig::Rig;
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::sync::mpsc;

/// The blocks of the page whose language is one of these, in order.
fn blocks(page: &str) -> Vec<(String, String)> {
    let parts = page.split("\n```").collect::<Vec<_>>();
    let whole = parts.iter().skip(1).filter_map(|part| part.split_once('\n'));
    let wanted = |language: &str| language.ends_with(" url") || language.starts_with("http ");
    whole.filter(|(language, _)| wanted(language)).map(|(l, t)| (l.to_owned(), format!("{t}\n"))).collect()
}

/// Ids by the order in which a call names them, as the page writes them.
fn numbered(text: &str) -> BTreeMap<String, String> {
    let mut ids = BTreeMap::new();
    for piece in text.split(['"', '\n', ' ', '+']).filter(|piece| piece.starts_with("j-") && piece.len() > 6) {
        let next = format!("j-{}", ids.len() + 1);
        ids.entry(piece.trim_end().to_owned()).or_insert(next);
    }
    ids
}

#[test]
fn the_calls_of_the_page_are_sent_and_their_replies_understood() {
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/runners.md")).unwrap();
    let blocks = blocks(&page);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let of = |language: &str| blocks.iter().filter(|(l, _)| l == language).map(|(_, t)| t.clone()).collect::<Vec<_>>();
    let config = of("toml url").concat().replace("8080", &port.to_string());
    let (heard, replies) = (mpsc::channel(), of("http reply"));
    std::thread::spawn(move || {
        let mut stream = listener.accept().unwrap().0;
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        for reply in replies {
            let (mut head, mut length) = (String::new(), 0);
            while !head.ends_with("\r\n\r\n") && !head.ends_with("\n\r\n") {
                let begun = head.len();
                reader.read_line(&mut head).unwrap();
                length = head[begun..].strip_prefix("content-length: ").map_or(length, |n| n.trim().parse().unwrap());
            }
            let mut body = vec![0; length];
            reader.read_exact(&mut body).unwrap();
            let body = String::from_utf8(body).unwrap();
            let (head_of_reply, body_of_reply) = reply.split_once("\n\n").unwrap();
            let mut answer = body_of_reply.to_owned();
            for (id, number) in numbered(&body) {
                answer = answer.replace(&number, &id);
            }
            let head_of_reply = head_of_reply.lines().filter(|line| !line.starts_with("Content-Length"));
            let head_of_reply: Vec<&str> = head_of_reply.collect();
            let head_of_reply = head_of_reply.join("\r\n");
            let answer = format!("{head_of_reply}\r\nContent-Length: {}\r\n\r\n{answer}", answer.len());
            stream.write_all(answer.as_bytes()).unwrap();
            heard.0.send((head, body)).unwrap();
        }
    });
    let rig = Rig::new();
    let server = rig.serve(&config);
    let (orders, calls, results) = (of("sh url"), of("http call"), of("text url"));
    assert_eq!((orders.len(), calls.len(), results.len()), (4, 4, 4));
    for ((order, call), result) in orders.iter().zip(&calls).zip(&results) {
        let words: Vec<&str> = order.split_whitespace().skip(1).collect();
        let ids = rig.call(&words).fine().to_owned();
        rig.call(&["wait", "--drained"]);
        let (head, body) = heard.1.recv().unwrap();
        let ids_of_call = numbered(&body);
        let (head_of_call, body_of_call) = call.split_once("\n\n").unwrap();
        for line in head_of_call.lines().filter(|line| !line.starts_with("webhook-")) {
            assert!(head.contains(line), "{line} is not in {head}");
        }
        assert!(head.contains("webhook-id: j-") && head.contains("webhook-timestamp: "), "{head}");
        let body = ids_of_call.iter().fold(body, |body, (id, number)| body.replace(id, number));
        assert_eq!(body, body_of_call.trim_end());
        for (id, line) in ids.lines().zip(result.trim_end().lines()) {
            let job = rig.call(&["show", id, "--json"]).json();
            let last = job["history"].as_array().and_then(|history| history.last()).cloned().unwrap_or_default();
            let words =
                [&last["message"], &last["error"]].into_iter().filter_map(Value::as_str).find(|t| !t.is_empty());
            let told = format!(
                "{}: {} {}",
                job["data"].as_str().unwrap(),
                job["state"].as_str().unwrap(),
                words.unwrap_or_default()
            );
            assert_eq!(told.trim_end(), line);
        }
    }
    server.stop();
}

#[test]
fn a_url_is_refused_with_a_sentence_where_it_cannot_be_meant() {
    let rig = Rig::new();
    let path = rig.path("c.toml");
    std::fs::write(rig.path("open"), "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\n").unwrap();
    std::fs::set_permissions(rig.path("open"), std::fs::Permissions::from_mode(0o644)).unwrap();
    std::fs::write(rig.path("short"), "whsec_AAAA\n").unwrap();
    std::fs::set_permissions(rig.path("short"), std::fs::Permissions::from_mode(0o600)).unwrap();
    for (keys, sentence) in [
        ("url = \"ftp://a/\"", "expected http:// or https://"),
        ("url = \"http://127.0.0.1:1/\"", "`url` leads to 127.0.0.1, an address of this machine"),
        ("url = \"http://169.254.169.254/\"", "an address that no job may call"),
        ("url = \"http://[::1]/\"", "an address of this machine"),
        ("url = \"http://{data.host}/\"", "has a template in its host"),
        ("url = \"http://me:pw@a/\"", "has a user in it"),
        ("url = \"http://a/#x\"", "has a `#`"),
        ("url = \"http://a/b c\"", "has a space"),
        ("url = \"http://a/../b\"", "`.` or `..`"),
        ("url = \"http://a:99999/\"", "is no port"),
        ("url = \"http:///x\"", "is no host"),
        ("url = \"http://a/\"\nmethod = \"PUT\"", "expected \"GET\" or \"POST\""),
        ("url = \"http://a/\"\nmethod = \"GET\"\nbatch_size = 2", "has no body to carry a batch"),
        ("url = \"http://a/{id}\"\nbatch_size = 2", "`{id}` in `url` means one job"),
        ("url = \"http://a/\"\nframing = \"raw\"", "is for calls with many jobs"),
        ("url = \"http://a/\"\nenvironment = {}", "`environment` belongs to commands"),
        ("url = \"http://a/\"\nrun = [\"true\"]", "`run` and `url`, expected exactly one"),
        ("run = [\"true\"]\nmethod = \"GET\"", "`method` belongs to `url`"),
        ("url = \"http://a/\"\nsecret_file = \"none\"", "No such file"),
        ("url = \"http://a/\"\nsecret_file = \"open\"", "everybody can read or write it"),
        ("url = \"http://a/\"\nsecret_file = \"short\"", "expected whsec_ and the base64 of 24 to 64 bytes"),
    ] {
        std::fs::write(&path, format!("[queue.q]\n{keys}\n")).unwrap();
        rig.call(&["config", "check", path.to_str().unwrap()]).says(sentence).ended(78);
    }
    for (hosts, url, code) in [
        ("\"127.0.0.1:8080\"", "http://127.0.0.1:8080/", 0),
        ("\"127.0.0.1\"", "http://127.0.0.1:8080/", 0),
        ("\"127.0.0.1:8081\"", "http://127.0.0.1:8080/", 78),
        ("\"[::1]:80\"", "http://[::1]/", 0),
        ("\"169.254.169.254\"", "http://169.254.169.254/", 78),
        ("7", "http://a/", 78),
        ("\"a:b\"", "http://a/", 78),
    ] {
        std::fs::write(&path, format!("[limits]\nhosts = [{hosts}]\n[queue.q]\nurl = \"{url}\"\n")).unwrap();
        rig.call(&["config", "check", path.to_str().unwrap()]).ended(code);
    }
}
