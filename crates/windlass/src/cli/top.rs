//! `windlass top`: how everything stands, on one screen that goes on: queues, what runs, what failed, runs, documents.
//!
//! It asks the public API and looks at directories, and changes nothing. `gather` asks, `frame` lays what was found
//! out on lines and knows no terminal, `keys` is what a person can say, `screen` has the terminal and gives it back.
//! Without a terminal, and with `--once`, it prints one frame and ends.

mod frame;
mod gather;
mod keys;
mod screen;

use super::Context;
use super::print::{self, Out};
use super::signals::{Signals, exit_code};
use crate::error::{Failure, Kind};
use crate::when;
use frame::View;
use gather::{Scene, Source};
use keys::{Key, Said};
use screen::Screen;
use std::io::{IsTerminal, Read};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::time::{Duration, Instant};

const EXAMPLES: &str = "\
Examples:
  windlass top
  windlass top --once                  one frame, for a script or a mail
  windlass top --json                  the same as one document
  windlass top --spool work            directories of documents, without any server";

/// A look that takes long comes round less often: it is at rest for so many times as long.
const REST_TIMES: u32 = 2;
const DELAY_MIN: Duration = Duration::from_millis(100);

#[derive(Debug, clap::Args)]
#[command(before_help = EXAMPLES)]
pub(super) struct Args {
    /// Directories of documents to show beside those that the server's config names
    directory: Vec<PathBuf>,
    /// Only these directories of documents: no server is asked
    #[arg(long, value_name = "DIR", conflicts_with = "directory")]
    spool: Vec<PathBuf>,
    /// Print one frame and end; so it is without a terminal
    #[arg(long)]
    once: bool,
    /// How often it looks
    #[arg(short, long, value_name = "DURATION", default_value = "1s", value_parser = delay)]
    delay: Duration,
}

impl Args {
    /// It is directories alone that are to be shown.
    pub(super) fn asks_no_server(&self) -> bool {
        !self.spool.is_empty()
    }
}

fn delay(text: &str) -> Result<Duration, String> {
    let delay = when::duration(text)?;
    if delay < DELAY_MIN { Err(format!("expected at least 100ms, got: {text}")) } else { Ok(delay) }
}

pub(super) fn top(args: &Args, context: &Context) -> Result<u8, Failure> {
    let terminal = std::io::stdin().is_terminal() && std::io::stdout().is_terminal();
    let dumb = std::env::var_os("TERM").is_none_or(|term| term.is_empty() || term == "dumb");
    let mut source = match args.asks_no_server() {
        false => Source::new(Some(context), &args.directory),
        true => Source::new(None, &args.spool),
    };
    if args.once || context.json || !terminal || dumb {
        return once(&mut source, context);
    }
    // Before any thread is there.
    let signals =
        Signals::take(&[libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGTSTP, libc::SIGCONT, libc::SIGWINCH])?;
    let scene = first(&mut source)?;
    let (tell, happened) = sync_channel(64);
    let (wish, wishes) = channel();
    spawn_signals(signals, tell.clone());
    spawn_keys(tell.clone());
    spawn_looks(source, args.delay, wishes, tell);
    let screen = Screen::enter(context.color)?;
    Live { view: View::default(), scene, screen, wish, stopped: false }.follow(&happened)
}

/// The first look: what is wrong then is a reason not to begin.
fn first(source: &mut Source) -> Result<Scene, Failure> {
    let scene = source.look(None);
    match &scene.trouble {
        Some(failure) if scene.spools.is_empty() || failure.kind != Kind::NoServer => Err(failure.clone()),
        _ => Ok(scene),
    }
}

fn once(source: &mut Source, context: &Context) -> Result<u8, Failure> {
    let scene = first(source)?;
    if context.json {
        return print::document(&scene.document());
    }
    let mut out = Out::new();
    frame::plain(&scene).iter().for_each(|line| out.line(line));
    out.finish()
}

/// What can happen while one looks on.
enum Happened {
    Signal(i32),
    Said(Vec<Key>),
    Scene(Box<Scene>),
    /// Nobody is there to say anything any more.
    Closed,
}

fn spawn_signals(signals: Signals, tell: SyncSender<Happened>) {
    std::thread::spawn(move || {
        while let Some(signal) = signals.next() {
            if tell.send(Happened::Signal(signal)).is_err() {
                return;
            }
        }
    });
}

fn spawn_keys(tell: SyncSender<Happened>) {
    std::thread::spawn(move || {
        let mut bytes = [0; 256];
        loop {
            let said = match std::io::stdin().lock().read(&mut bytes) {
                Ok(0) | Err(_) => Happened::Closed,
                Ok(length) => Happened::Said(keys::read(&bytes[..length])),
            };
            let closed = matches!(said, Happened::Closed);
            if tell.send(said).is_err() || closed {
                return;
            }
        }
    });
}

/// Looks again and again, with a rest between, or when it is wished for.
fn spawn_looks(mut source: Source, delay: Duration, wishes: Receiver<()>, tell: SyncSender<Happened>) {
    std::thread::spawn(move || {
        let mut rest = delay;
        let mut last = None;
        while !matches!(wishes.recv_timeout(rest), Err(std::sync::mpsc::RecvTimeoutError::Disconnected)) {
            let began = Instant::now();
            let scene = source.look(last.as_ref());
            rest = delay.max(began.elapsed() * REST_TIMES);
            last = Some(scene.clone());
            if tell.send(Happened::Scene(Box::new(scene))).is_err() {
                return;
            }
        }
        // Only a panic of this thread ends it while somebody looks on: the channel then tells.
    });
}

struct Live {
    view: View,
    scene: Scene,
    screen: Screen,
    wish: Sender<()>,
    /// Somebody stopped this process, and has not let it go on yet.
    stopped: bool,
}

impl Live {
    /// Draws when something has happened, and only then.
    fn follow(mut self, happened: &Receiver<Happened>) -> Result<u8, Failure> {
        loop {
            self.draw()?;
            let lost = |_| Failure::new(Kind::Internal, "all threads of the view have ended");
            match happened.recv().map_err(lost)? {
                Happened::Closed => return Ok(0),
                Happened::Scene(scene) => {
                    if !self.view.paused {
                        self.scene = *scene;
                    }
                }
                Happened::Said(said) => {
                    for key in said {
                        match self.view.say(key, &self.scene) {
                            Said::Quit => return Ok(0),
                            // Where nobody looks any more, the next event tells.
                            Said::Look => drop(self.wish.send(())),
                            Said::Nothing => {}
                        }
                    }
                }
                Happened::Signal(libc::SIGWINCH) => {}
                Happened::Signal(libc::SIGTSTP) => {
                    self.stopped = true;
                    self.screen.stop()?;
                }
                Happened::Signal(libc::SIGCONT) => {
                    self.stopped = false;
                    self.screen.go_on()?;
                }
                Happened::Signal(signal) => return Ok(exit_code(signal)),
            }
        }
    }

    fn draw(&mut self) -> Result<(), Failure> {
        if self.stopped {
            return Ok(());
        }
        let (width, height) = self.screen.size();
        let lines = frame::lines(&self.scene, &mut self.view, width, height);
        self.screen.draw(&lines)
    }
}
