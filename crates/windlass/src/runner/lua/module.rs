//! One job in a Lua state of its own: what is open to a script, how its module is loaded and its function called.
//!
//! Open are the language, `string`, `table`, `math`, `utf8`, `coroutine`, the clocks and the environment out of `os`,
//! `require` of modules beside this one, and `windlass` (`offered`). Nothing reads or writes files, loads text or
//! bytecode, or sees the interpreter's insides. The state is gone when `run` comes back. It must not decide what a
//! returned value means: `returned` does.

use super::offered::{self, Emitted, Raised};
use super::returned::{self, Reply, Verdict};
use super::sources::Sources;
use crate::api::Subject;
use mlua::chunk::ChunkMode;
use mlua::{Function, IntoLuaMulti, Lua, LuaOptions, MultiValue, StdLib, Table, Value};
use rustix::fd::OwnedFd;
use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// What `os` keeps: it reads clocks, and the environment that the table of the queue gave.
const OF_OS: [&str; 5] = ["clock", "date", "difftime", "getenv", "time"];
/// What the language itself would have beyond what is safe here.
const CLOSED: [&str; 5] = ["collectgarbage", "dofile", "load", "loadfile", "warn"];

/// A job as a script sees it.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) id: String,
    pub(super) queue: String,
    pub(super) attempt: u32,
    /// How far an earlier start had come, if it said so.
    pub(super) checkpoint: Option<String>,
    /// The record that it is about, if it says so.
    pub(super) subject: Option<Subject>,
    pub(super) data: Vec<u8>,
}

/// Where a job's module is, and what the states of one process share.
pub(super) struct Place {
    pub(super) file: PathBuf,
    pub(super) sources: Rc<RefCell<Sources>>,
    pub(super) channel: Option<Rc<OwnedFd>>,
}

/// Does a job; whatever happens, there is a reply.
pub(super) fn run(place: &Place, job: &Job, memory: u64) -> Reply {
    let emitted: Rc<RefCell<Emitted>> = Rc::default();
    let verdict = match in_a_state(place, job, memory, &emitted) {
        Ok(verdict) => verdict,
        Err(error) => offered::verdict_of(&error),
    };
    let verdict = match verdict {
        Verdict::Retry { error, after } if error == "not enough memory" => {
            let error = format!("{}: {error}: a job may have {memory} bytes of it (`lua_memory`)", name(&place.file));
            Verdict::Retry { error, after }
        }
        other => other,
    };
    Reply { verdict, emitted: std::mem::take(&mut emitted.borrow_mut().laid) }
}

fn in_a_state(place: &Place, job: &Job, memory: u64, emitted: &Rc<RefCell<Emitted>>) -> mlua::Result<Verdict> {
    let libraries = StdLib::STRING | StdLib::TABLE | StdLib::MATH | StdLib::UTF8 | StdLib::COROUTINE | StdLib::OS;
    let lua = Lua::new_with(libraries, LuaOptions::default())?;
    // Taken before a script can put something else in their places.
    let protect = Protect { pcall: lua.globals().get("pcall")?, tostring: lua.globals().get("tostring")? };
    close(&lua)?;
    offered::install(&lua, place.channel.clone(), emitted, &protect)?;
    lua.globals().set("require", require(&lua, place, &protect)?)?;
    let argument = argument(&lua, job)?;
    lua.set_memory_limit(usize::try_from(memory).unwrap_or(usize::MAX))?;

    let module = match load(&lua, place, &place.file, &name(&place.file)) {
        Ok(module) => module,
        Err(error) => return Ok(Verdict::Retry { error, after: None }),
    };
    let function = match protect.call(module, ())? {
        Ok(mut values) => values.pop_front().unwrap_or(Value::Nil),
        Err(raised) => return Ok(protect.verdict(raised)),
    };
    let Value::Function(function) = function else {
        let (name, kind) = (name(&place.file), function.type_name());
        let error = format!("{name} returns a {kind}, expected the function that does a job");
        return Ok(Verdict::Retry { error, after: None });
    };
    Ok(match protect.call(function, argument.clone())? {
        Ok(values) => returned::verdict(values, &argument, emitted),
        Err(raised) => protect.verdict(raised),
    })
}

/// Calls that come back whatever a script does.
#[derive(Clone)]
pub(super) struct Protect {
    pcall: Function,
    pub(super) tostring: Function,
}

impl Protect {
    /// What the function returned, or what it raised; an outer error is that of Lua itself.
    fn call(&self, function: Function, arguments: impl IntoLuaMulti) -> mlua::Result<Result<MultiValue, Value>> {
        let mut values: MultiValue = self.pcall.call((function, arguments))?;
        match values.pop_front() {
            Some(Value::Boolean(true)) => Ok(Ok(values)),
            _ => Ok(Err(values.pop_front().unwrap_or(Value::Nil))),
        }
    }

    /// What becomes of a job whose script raised this.
    fn verdict(&self, raised: Value) -> Verdict {
        match raised {
            Value::Error(error) => offered::verdict_of(&error),
            other => Verdict::Retry { error: self.words(other), after: None },
        }
    }

    /// The words of a raised value; a table may have its own.
    fn words(&self, raised: Value) -> String {
        let kind = raised.type_name();
        if let Value::String(text) = &raised {
            return text.to_string_lossy();
        }
        let words = self.call(self.tostring.clone(), raised);
        let words = words.ok().and_then(Result::ok).and_then(|mut values| values.pop_front());
        match words.as_ref().and_then(Value::as_string) {
            Some(text) => format!("the script raised a {kind}: {}", text.to_string_lossy()),
            None => format!("the script raised a {kind}"),
        }
    }
}

/// Takes away what a script must not have.
fn close(lua: &Lua) -> mlua::Result<()> {
    let globals = lua.globals();
    for name in CLOSED {
        globals.raw_remove(name)?;
    }
    let (whole, kept): (Table, Table) = (globals.get("os")?, lua.create_table()?);
    for name in OF_OS {
        kept.raw_set(name, whole.raw_get::<Value>(name)?)?;
    }
    globals.raw_set("os", kept)?;
    let string: Table = globals.get("string")?;
    string.raw_remove("dump")
}

/// The job as a table that cannot be changed; giving it back means to run it again, so it must be as it was.
fn argument(lua: &Lua, job: &Job) -> mlua::Result<Table> {
    let fields = lua.create_table()?;
    fields.raw_set("id", job.id.as_str())?;
    fields.raw_set("queue", job.queue.as_str())?;
    fields.raw_set("attempt", job.attempt)?;
    fields.raw_set("checkpoint", job.checkpoint.as_deref())?;
    if let Some(Subject { kind, id }) = &job.subject {
        fields.raw_set("subject_type", kind.as_str())?;
        fields.raw_set("subject_id", id.as_str())?;
    }
    fields.raw_set("data", lua.create_string(&job.data)?)?;
    let meta = lua.create_table()?;
    let next: Function = lua.globals().get("next")?;
    let (of_pairs, none) = (fields.clone(), Value::Nil);
    let pairs = lua.create_function(move |_, _: Value| Ok((next.clone(), of_pairs.clone(), none.clone())))?;
    let refuse = lua.create_function(|lua, _: MultiValue| -> mlua::Result<()> {
        Err(offered::raise(lua, "a job cannot be changed; return {queue = …, data = …} for another one"))
    })?;
    meta.raw_set("__index", fields)?;
    meta.raw_set("__pairs", pairs)?;
    meta.raw_set("__newindex", refuse)?;
    meta.raw_set("__metatable", false)?;
    let argument = lua.create_table()?;
    argument.set_metatable(Some(meta))?;
    Ok(argument)
}

/// Compiles a file, text only; an error is the sentence with file and line.
fn load(lua: &Lua, place: &Place, path: &Path, name: &str) -> Result<Function, String> {
    let text = place.sources.borrow_mut().read(path)?;
    // As the interpreter of the command line does it: a first line for the shell is none of ours.
    let text = match text.first() {
        Some(b'#') => &text[memchr::memchr(b'\n', &text).unwrap_or(text.len())..],
        _ => &text[..],
    };
    let chunk = lua.load(text).set_name(format!("@{name}")).set_mode(ChunkMode::Text);
    chunk.into_function().map_err(|error| offered::words_of(&error))
}

/// What a file is called in errors.
fn name(path: &Path) -> String {
    path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
}

/// `require "a.b"`: what `a/b.lua` beside the module returns, once for a job.
fn require(lua: &Lua, place: &Place, protect: &Protect) -> mlua::Result<Function> {
    let beside = place.file.parent().unwrap_or(Path::new("/")).to_owned();
    let place = Place { file: beside, sources: Rc::clone(&place.sources), channel: None };
    let (loaded, protect) = (lua.create_table()?, protect.clone());
    lua.create_function(move |lua, name: Value| {
        let name = name.as_string().map(|name| name.to_string_lossy()).unwrap_or_default();
        let plain = |part: &str| !part.is_empty() && part.chars().all(|c| c.is_alphanumeric() || "_-".contains(c));
        if !name.split('.').all(plain) {
            let text = format!("cannot require {name:?}, expected the name of a file beside the module, without .lua");
            return Err(offered::raise(lua, text));
        }
        let known: Value = loaded.raw_get(name.as_str())?;
        if known == Value::NULL {
            return Err(offered::raise(lua, format!("{name} requires itself")));
        }
        if known != Value::Nil {
            return Ok(known);
        }
        loaded.raw_set(name.as_str(), Value::NULL)?;
        let file = format!("{}.lua", name.replace('.', "/"));
        let chunk = load(lua, &place, &place.file.join(&file), &file).map_err(|why| offered::raise(lua, why))?;
        let value = match protect.call(chunk, name.as_str())? {
            Ok(mut values) => values.pop_front().unwrap_or(Value::Nil),
            Err(Value::Error(error)) => return Err(*error),
            Err(raised) => return Err(Raised::Wrong(protect.words(raised)).into()),
        };
        let value = if value == Value::Nil { Value::Boolean(true) } else { value };
        loaded.raw_set(name.as_str(), value.clone())?;
        Ok(value)
    })
}
