//! What a script finds in `windlass`: emitting jobs, telling how far it is, ending early, and JSON.
//!
//! Words go to the server as control lines, jobs with the reply. A wrong call raises an error that names the line of
//! the script. It must not touch anything of the machine but descriptor 3 and standard error.

use super::json;
use super::module::Protect;
use super::returned::{Verdict, data_of};
use crate::api::base64;
use crate::when;
use mlua::{Error, Lua, MultiValue, Table, Value, Variadic};
use rustix::fd::OwnedFd;
use std::cell::RefCell;
use std::fmt;
use std::io::Write;
use std::rc::Rc;
use std::time::Duration;
use windlass_core::job::QueueName;

/// All that a job emits goes into one reply, and a reply has a bound.
const EMITTED_MAX: usize = 3 << 20;
/// A small table that holds others many times can be endless as text.
const ENCODED_MAX: usize = 16 << 20;
/// The longest control line that is sent; the server keeps less.
const LINE_MAX: usize = 4000;

/// What ends a script before its end.
#[derive(Debug)]
pub(super) enum Raised {
    /// A mistake, with its place.
    Wrong(String),
    Fail(String),
    Retry(String, Option<Duration>),
    Snooze(Duration),
}

impl fmt::Display for Raised {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Raised::Wrong(text) | Raised::Fail(text) | Raised::Retry(text, _) => f.write_str(text),
            Raised::Snooze(after) => write!(f, "snoozed for {after:?}"),
        }
    }
}

impl std::error::Error for Raised {}

impl From<Raised> for Error {
    fn from(raised: Raised) -> Error {
        Error::external(raised)
    }
}

/// An error at the line of the script that called.
pub(super) fn raise(lua: &Lua, text: impl fmt::Display) -> Error {
    let place = (1..8).find_map(|level| {
        lua.inspect_stack(level, |debug| {
            let line = debug.current_line()?;
            Some(format!("{}:{line}: ", debug.source().short_src?))
        })?
    });
    Raised::Wrong(format!("{}{text}", place.unwrap_or_default())).into()
}

/// What becomes of a job whose script ended with this error.
pub(super) fn verdict_of(error: &Error) -> Verdict {
    match error.downcast_ref::<Raised>() {
        Some(Raised::Fail(error)) => Verdict::Fail { error: error.clone() },
        Some(Raised::Retry(error, after)) => Verdict::Retry { error: error.clone(), after: *after },
        Some(Raised::Snooze(after)) => Verdict::Again { after: Some(*after) },
        Some(Raised::Wrong(error)) => Verdict::Retry { error: error.clone(), after: None },
        None => Verdict::Retry { error: words_of(error), after: None },
    }
}

/// The words of an error of Lua's own, without a trace.
pub(super) fn words_of(error: &Error) -> String {
    match error {
        Error::SyntaxError { message, .. } | Error::RuntimeError(message) | Error::MemoryError(message) => {
            message.split("\nstack traceback:").next().unwrap_or_default().to_owned()
        }
        Error::CallbackError { cause, .. } | Error::WithContext { cause, .. } => words_of(cause),
        other => other.to_string(),
    }
}

/// The jobs of one state, as they will stand in the reply.
#[derive(Debug, Default)]
pub(super) struct Emitted {
    pub(super) laid: Vec<String>,
    bytes: usize,
}

impl Emitted {
    /// Takes one more; an error is a sentence, and nothing was taken.
    pub(super) fn add(&mut self, queue: &[u8], data: &[u8]) -> Result<(), String> {
        let queue = QueueName::new(queue).map_err(|e| e.to_string())?;
        let queue = serde_json::Value::from(queue.as_str());
        let plain = std::str::from_utf8(data).ok().map(|text| serde_json::Value::from(text).to_string());
        // Text full of control characters is shorter as base64.
        let laid = match plain.filter(|text| text.len() <= data.len() / 2 * 3 + 64) {
            Some(text) => format!("{{\"queue\":{queue},\"data\":{text}}}"),
            None => format!("{{\"queue\":{queue},\"data64\":\"{}\"}}", base64::encode(data)),
        };
        if self.bytes + laid.len() > EMITTED_MAX {
            return Err(format!("a job of Lua may emit {EMITTED_MAX} bytes in all"));
        }
        self.bytes += laid.len() + 1;
        self.laid.push(laid);
        Ok(())
    }
}

/// Puts `windlass` and `print` into a state.
pub(super) fn install(
    lua: &Lua,
    channel: Option<Rc<OwnedFd>>,
    emitted: &Rc<RefCell<Emitted>>,
    protect: &Protect,
) -> mlua::Result<()> {
    let offered = lua.create_table()?;
    let emitted = Rc::clone(emitted);
    let emit = lua.create_function(move |lua, (queue, data): (Value, Value)| {
        let queue = queue.as_string().map(|queue| queue.as_bytes().to_vec());
        let queue = queue.ok_or_else(|| raise(lua, "emit needs the name of a queue and data"))?;
        let data = data_of(&data).map_err(|why| raise(lua, why))?;
        emitted.borrow_mut().add(&queue, &data).map_err(|why| raise(lua, why))
    })?;
    offered.raw_set("emit", emit)?;
    install_words(lua, &offered, channel)?;
    install_ends(lua, &offered)?;
    install_json(lua, &offered)?;
    lua.globals().set("windlass", offered)?;
    let tostring = protect.tostring.clone();
    let print = lua.create_function(move |_, values: Variadic<Value>| {
        let mut line = Vec::new();
        for (at, value) in values.into_iter().enumerate() {
            line.extend_from_slice(if at > 0 { b"\t" } else { b"" });
            let text: mlua::LuaString = tostring.call(value)?;
            line.extend_from_slice(&text.as_bytes());
        }
        line.push(b'\n');
        // Nobody may listen, and that is no fault of the script's.
        let _unheard = std::io::stderr().write_all(&line);
        Ok(())
    })?;
    lua.globals().set("print", print)
}

/// Words about the job that runs: a control line each.
fn install_words(lua: &Lua, offered: &Table, channel: Option<Rc<OwnedFd>>) -> mlua::Result<()> {
    let say = move |word: &str, text: &str| {
        let mut line = format!("{word} {}", text.replace(['\n', '\r'], " "));
        line.truncate(line.floor_char_boundary(LINE_MAX));
        line.push('\n');
        if let Some(channel) = &channel {
            // A line fits into a pipe at once or waits for the server to read; one that is gone will end us.
            let _unheard = rustix::io::write(&**channel, line.as_bytes());
        }
    };
    let say_progress = say.clone();
    let progress = lua.create_function(move |lua, values: MultiValue| {
        let words: Result<Vec<String>, _> = values.iter().map(text_of).collect();
        let words = words.map_err(|why| raise(lua, format_args!("progress: {why}")))?;
        // progress(3, 10, "pages") and progress("3/10 pages") are the same.
        match (values.front(), &words[..]) {
            (Some(Value::Integer(_) | Value::Number(_)), [done, total, text @ ..]) => {
                say_progress("progress", format!("{done}/{total} {}", text.join(" ")).trim_end());
            }
            _ => say_progress("progress", &words.join(" ")),
        }
        Ok(())
    })?;
    offered.raw_set("progress", progress)?;
    for word in ["phase", "checkpoint"] {
        let say = say.clone();
        let tell = lua.create_function(move |lua, text: Value| {
            say(word, &text_of(&text).map_err(|why| raise(lua, format_args!("{word}: {why}")))?);
            Ok(())
        })?;
        offered.raw_set(word, tell)?;
    }
    let extend = lua.create_function(move |lua, time: Value| {
        let time = time_of(&time).map_err(|why| raise(lua, format_args!("extend: {why}")))?;
        say("extend", &format!("{}ms", time.as_millis()));
        Ok(())
    })?;
    offered.raw_set("extend", extend)
}

/// Ways to end a job at once.
fn install_ends(lua: &Lua, offered: &Table) -> mlua::Result<()> {
    let or = |text: &Value, otherwise: &str| match text {
        Value::Nil => Ok(otherwise.to_owned()),
        text => text_of(text),
    };
    let fail = lua.create_function(move |lua, text: Value| -> mlua::Result<()> {
        let text = or(&text, "said that it cannot succeed").map_err(|why| raise(lua, format_args!("fail: {why}")))?;
        Err(Raised::Fail(text).into())
    })?;
    offered.raw_set("fail", fail)?;
    let retry = lua.create_function(move |lua, (text, after): (Value, Value)| -> mlua::Result<()> {
        let wrong = |why: String| raise(lua, format_args!("retry: {why}"));
        let text = or(&text, "asked to be tried later").map_err(wrong)?;
        let after = if after == Value::Nil { None } else { Some(time_of(&after).map_err(wrong)?) };
        Err(Raised::Retry(text, after).into())
    })?;
    offered.raw_set("retry", retry)?;
    let snooze = lua.create_function(|lua, after: Value| -> mlua::Result<()> {
        let after = time_of(&after).map_err(|why| raise(lua, format_args!("snooze: {why}")))?;
        Err(Raised::Snooze(after).into())
    })?;
    offered.raw_set("snooze", snooze)
}

fn install_json(lua: &Lua, offered: &Table) -> mlua::Result<()> {
    let encode = lua.create_function(|lua, value: Value| {
        let text = json::encode(&value, ENCODED_MAX).map_err(|why| raise(lua, why))?;
        lua.create_string(text)
    })?;
    let decode = lua.create_function(|lua, text: Value| {
        let text = text.as_string().ok_or_else(|| raise(lua, "decode needs text"))?;
        json::decode(lua, &text.as_bytes()).map_err(|why| raise(lua, why))
    })?;
    offered.raw_set("encode", encode)?;
    offered.raw_set("decode", decode)?;
    offered.raw_set("null", Value::NULL)
}

/// Text out of a text or a number.
fn text_of(value: &Value) -> Result<String, String> {
    match value {
        Value::String(text) => Ok(text.to_string_lossy()),
        Value::Integer(number) => Ok(number.to_string()),
        Value::Number(number) => Ok(number.to_string()),
        other => Err(format!("a {} is no text", other.type_name())),
    }
}

/// A time: seconds, or a text such as "5m".
pub(super) fn time_of(value: &Value) -> Result<Duration, String> {
    let seconds = |seconds: f64| Duration::try_from_secs_f64(seconds).ok();
    let time = match value {
        Value::Integer(whole) => seconds(*whole as f64),
        Value::Number(number) => seconds(*number),
        Value::String(text) => text.to_str().ok().and_then(|text| when::duration(&text).ok()),
        _ => None,
    };
    time.ok_or_else(|| "expected a time: seconds, or a text such as \"5m\"".to_owned())
}
