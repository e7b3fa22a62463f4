//! Lua modules through the whole program: what a script gets and returns, what is closed to it, what ends it.

use crate::rig::{Rig, Server};
use serde_json::Value;
use std::path::PathBuf;

/// A place with modules; every queue is served by the module of its name.
struct Modules {
    rig: Rig,
    dir: PathBuf,
}

impl Modules {
    fn new() -> Modules {
        let rig = Rig::new();
        let dir = rig.path("modules");
        std::fs::create_dir(&dir).unwrap();
        Modules { rig, dir }
    }

    fn serve(&self, more: &str) -> Server {
        let modules = self.dir.join("{queue}.lua");
        let attempts = if more.contains("attempts") { "" } else { "attempts = 1\n" };
        self.rig.serve(&format!("[queue.\"*\"]\nlua = {modules:?}\nslots = 1\n{attempts}{more}"))
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.dir.join(format!("{name}.lua")), text).unwrap();
    }

    /// The module's function with this body.
    fn body(&self, name: &str, body: &str) {
        self.write(name, &format!("return function(job)\n{body}\nend\n"));
    }

    /// Pushes one job and waits until nothing more runs; the job as `show` has it.
    fn run(&self, queue: &str, data: &str) -> Value {
        let id = self.rig.call(&["push", queue, data]).fine().trim_end().to_owned();
        self.rig.drained();
        self.rig.call(&["show", &id, "--json"]).json()
    }

    /// State and words of one job.
    fn told(&self, queue: &str, data: &str) -> String {
        told(&self.run(queue, data))
    }

    fn succeeded(&self, queue: &str) -> u64 {
        let status = self.rig.call(&["status", "--json"]).json();
        status["queues"][queue]["succeeded"].as_u64().unwrap_or(0)
    }
}

fn told(job: &Value) -> String {
    let last = job["history"].as_array().and_then(|history| history.last()).cloned().unwrap_or_default();
    let words = [&last["message"], &last["error"]].into_iter().find_map(|text| text.as_str().filter(|t| !t.is_empty()));
    format!("{} {}", job["state"].as_str().unwrap(), words.unwrap_or_default()).trim_end().to_owned()
}

#[test]
fn what_a_script_returns_decides_what_comes_next() {
    let modules = Modules::new();
    modules.body("next", "return job.data");
    let cases = [
        ("nothing", "", "succeeded"),
        ("text", "return 'hello ' .. job.data", "succeeded hello x"),
        ("number", "return 6 * 7", "succeeded 42"),
        ("flag", "return true", "succeeded true"),
        ("table", "return {rows = 3, names = {'a', 'b'}}", "succeeded {\"names\":[\"a\",\"b\"],\"rows\":3}"),
        ("empty", "return {}", "succeeded"),
        ("job", "return {queue = 'next', data = 'one'}", "succeeded"),
        ("list", "return {{queue = 'next', data = {n = 1}}, {queue = 'next'}}", "succeeded"),
        ("emits", "windlass.emit('next', job.data) windlass.emit('next', 3) return 'two'", "succeeded two"),
        ("itself", "if job.attempt < 3 then return job end return 'third'", "succeeded third"),
        ("later", "if job.attempt < 2 then return job, 0.01 end return 'second'", "succeeded second"),
        ("told", "return nil, 'no such row'", "failed no such row"),
        ("raised", "error('no database')", "failed raised.lua:2: no database"),
        ("fails", "windlass.emit('next', 'never') windlass.fail('bad row')", "failed bad row"),
        ("tried", "windlass.retry('not now')", "failed not now"),
        ("mixed", "return {{queue = 'next'}, 5}", "failed what the script returned cannot be told: job 2 of the list"),
        ("wrong", "return {queue = 'next', prio = 5}", "failed what the script returned cannot be told: a new job"),
        ("function", "return print", "failed what the script returned cannot be told: a function"),
        ("nan", "return 0/0", "failed what the script returned cannot be told: the number"),
        ("round", "local t = {} t.t = t return t", "failed what the script returned cannot be told: a table is more"),
        ("bytes", "return '\\xff'", "failed what the script returned cannot be told: a text that is not UTF-8"),
    ];
    for (name, body, _) in cases {
        modules.body(name, body);
    }
    let server = modules.serve("");
    for (name, _, expected) in cases {
        let told = modules.told(name, "x");
        assert!(told.starts_with(expected), "{name}: {told}");
        assert!(told == expected || expected.contains("cannot be told"), "{name}: {told}");
    }
    assert_eq!(modules.succeeded("next"), 5, "only what successful jobs emitted has run");
    let itself = modules.run("itself", "x");
    assert_eq!((&itself["history"][0]["outcome"], &itself["attempts"]["starts"]), (&"snoozed".into(), &3.into()));
    modules.body("snoozes", "windlass.snooze('1h')");
    let id = modules.rig.call(&["push", "snoozes", "x"]).fine().trim_end().to_owned();
    while modules.rig.call(&["show", &id, "--json"]).json()["state"] != "scheduled" {}
    server.stop();
}

#[test]
fn errors_name_the_file_and_the_line() {
    let modules = Modules::new();
    modules.write("lib", "local lib = {}\nfunction lib.bad() return nil + 1 end\nreturn lib\n");
    modules.write("syntax", "return function(job)\n  local x =\nend\n");
    modules.write("library", "local lib = require 'lib'\nreturn function() lib.bad() end\n");
    modules.write("top", "\nerror('at the top')\n");
    modules.write("none", "local x = 1\n");
    modules.write("shebang", "#!/usr/bin/lua\nreturn function() error('line three')\nend\n");
    modules.write("circle", "require 'circle'\nreturn print\n");
    modules.body("emit", "\nwindlass.emit('-bad', 'x')");
    modules.body("time", "windlass.extend('soon')");
    modules.body("change", "job.data = 'other'");
    modules.body("nothing", "error()");
    modules.body("table", "error(setmetatable({}, {__tostring = function() return 'my words' end}))");
    modules.body("worse", "error(setmetatable({}, {__tostring = function() error('no words') end}))");
    modules.body("outside", "require '../modules/lib'");
    modules.body("missing", "require 'no-such'");
    modules.body("long", "error(('x'):rep(100000))");
    let server = modules.serve("");
    for (name, expected) in [
        ("syntax", "failed syntax.lua:3: unexpected symbol near 'end'"),
        ("library", "failed lib.lua:2: attempt to perform arithmetic on a nil value"),
        ("top", "failed top.lua:2: at the top"),
        ("none", "failed none.lua returns a nil, expected the function that does a job"),
        ("shebang", "failed shebang.lua:2: line three"),
        ("circle", "failed circle.lua:1: circle requires itself"),
        ("emit", "failed emit.lua:3: "),
        ("time", "failed time.lua:2: extend: expected a time"),
        ("change", "failed change.lua:2: a job cannot be changed"),
        ("nothing", "failed the script raised a nil"),
        ("table", "failed the script raised a table: my words"),
        ("worse", "failed the script raised a table"),
        ("outside", "failed outside.lua:2: cannot require \"../modules/lib\""),
        ("missing", "failed missing.lua:2: cannot read the module"),
        ("long", "failed long.lua:2: xxx"),
        ("unknown", "failed cannot read the module"),
    ] {
        let told = modules.told(name, "x");
        assert!(told.starts_with(expected), "{name}: {}", &told[..told.len().min(300)]);
        assert!(told.len() < 5000, "{name}: {} bytes", told.len());
    }
    server.stop();
}

#[test]
fn what_could_reach_the_machine_is_closed() {
    let modules = Modules::new();
    modules.body(
        "open",
        "local found = {}
         for _, name in ipairs {'io', 'debug', 'package', 'load', 'loadfile', 'dofile', 'loadstring', 'collectgarbage',
                                'module', 'warn', 'jit', 'ffi'} do
             if _G[name] ~= nil then found[#found + 1] = name end
         end
         for name in pairs(os) do found[#found + 1] = 'os.' .. name end
         if string.dump then found[#found + 1] = 'string.dump' end
         if getmetatable(job) ~= false then found[#found + 1] = 'the metatable of a job' end
         table.sort(found)
         return table.concat(found, ' ')",
    );
    modules.write("bytecode", "\u{1b}Lua and more");
    // One job changes everything it can; the next one sees nothing of it.
    modules.body(
        "vandal",
        "pairs, tostring, error, left = nil, nil, nil, 'behind'
         getmetatable('').__index = function() return 'gotcha' end
         string.upper, windlass.emit, math.floor, job.x = nil
         _G = nil",
    );
    modules.body("after", "return tostring(left) .. ('a'):upper() .. math.floor(1.5) .. type(windlass.emit)");
    modules.body("env", "return tostring(os.getenv('LEVEL')) .. tostring(os.getenv('SECRET'))");
    let server = modules.serve("environment = { LEVEL = \"3\" }\n");
    let told = modules.told("open", "x");
    assert_eq!(told, "succeeded os.clock os.date os.difftime os.getenv os.time");
    let told = modules.told("bytecode", "x");
    assert!(told.contains("attempt to load a binary chunk"), "{told}");
    for _ in 0..2 {
        assert!(modules.told("vandal", "x").starts_with("failed vandal.lua:"));
        assert_eq!(modules.told("after", "x"), "succeeded nilA1function");
    }
    assert_eq!(modules.told("env", "x"), "succeeded 3nil");
    server.stop();
}

#[test]
fn an_endless_script_is_ended_by_its_time_limit_and_the_next_job_runs() {
    let modules = Modules::new();
    let endless = [
        ("plain", "while true do end"),
        ("coroutine", "coroutine.wrap(function() while true do end end)()"),
        ("caught", "while true do pcall(function() while true do end end) end"),
        ("metamethod", "local t = setmetatable({}, {__index = function() while true do end end}) return t.x"),
        ("pattern", "return ('a'):rep(30):find(('a?'):rep(30) .. ('a'):rep(30) .. 'b')"),
        ("callback", "return (('x'):gsub('x', function() while true do end end))"),
        ("finalizer", "setmetatable({}, {__gc = function() while true do end end}) return 'done'"),
        ("words", "error(setmetatable({}, {__tostring = function() while true do end end}))"),
    ];
    for (name, body) in endless {
        modules.body(name, body);
    }
    modules.body("fine", "return 'fine'");
    modules.body("slow", "windlass.extend('1h') local t = os.clock() while os.clock() < t + 0.6 do end return 'slow'");
    let server = modules.serve("time_limit = \"300ms\"\n");
    for (name, _) in endless {
        let told = modules.told(name, "x");
        assert_eq!(told, "failed ran over its time limit of 300ms", "{name}");
        assert_eq!(modules.told("fine", "x"), "succeeded fine", "after {name}");
    }
    assert_eq!(modules.told("slow", "x"), "succeeded slow", "it asked for more time");
    server.stop();
}

#[test]
fn a_script_that_takes_too_much_memory_is_told_and_its_worker_lives() {
    let modules = Modules::new();
    let bombs = [
        ("rep", "return #('x'):rep(1e9)"),
        ("grow", "local t = {} while true do t[#t + 1] = {} end"),
        ("concat", "local s = 'x' while true do s = s .. s end"),
        ("threads", "local t = {} while true do t[#t + 1] = coroutine.create(print) end"),
        ("deep", "local function f() return 1 + f() end return f()"),
        ("json", "local t = {} for i = 1, 60 do t = {t, t} end return #windlass.encode(t)"),
    ];
    for (name, body) in bombs {
        modules.body(name, body);
    }
    modules.body("many", "while true do windlass.emit('q', ('x'):rep(1000)) end");
    let server = modules.serve("lua_memory = \"16MiB\"\n");
    for (name, _) in bombs {
        let job = modules.run(name, "x");
        let told = told(&job);
        let words = "not enough memory: a job may have 16777216 bytes of it (`lua_memory`)";
        assert!(told.contains(words) || name == "json" && told.contains("json.lua:2: a "), "{name}: {told}");
        assert_eq!((&job["attempts"]["suspicions"], &job["attempts"]["starts"]), (&0.into(), &1.into()), "{name}");
    }
    let told = modules.told("many", "x");
    assert!(told.starts_with("failed many.lua:2: a job of Lua may emit"), "{told}");
    server.stop();
}

#[test]
fn a_changed_module_is_used_for_the_next_job() {
    let modules = Modules::new();
    modules.write("lib", "return 0");
    modules.write("version", "local lib = require 'lib' return function() return lib end");
    let server = modules.serve("");
    for version in 1..20 {
        modules.write("lib", &format!("return {version}"));
        assert_eq!(modules.told("version", "x"), format!("succeeded {version}"));
    }
    // A queue whose module comes later runs its backlog then, if it is tried again.
    assert!(modules.told("new", "x").starts_with("failed cannot read the module"));
    modules.body("new", "return 'here'");
    modules.rig.call(&["retry", "queue:new", "-y"]).fine();
    modules.rig.drained();
    assert_eq!(modules.succeeded("new"), 1);
    server.stop();
}

#[test]
fn data_passes_byte_for_byte_and_never_becomes_code() {
    let modules = Modules::new();
    let out = modules.rig.path("out");
    std::fs::create_dir(&out).unwrap();
    modules.body("echo", "windlass.emit('copy', job.data) return #job.data");
    let save = "cat > $1/$WINDLASS_JOB_ID";
    let config = format!(
        "[queue.echo]\nlua = {:?}\n[queue.copy]\nrun = [\"sh\", \"-c\", {save:?}, \"sh\", {out:?}]\n",
        modules.dir.join("echo.lua")
    );
    let server = modules.rig.serve(&config);
    let control: Vec<u8> = (0..1 << 20).map(|at| if at % 2 == 0 { 1 } else { 0x7f }).filter(|b| *b != b'\n').collect();
    let wild: Vec<u8> = (0..=255).filter(|b| *b != b'\n').collect();
    let mut sent: Vec<Vec<u8>> = vec![
        b"\"'$(id)`]]--[[ os.exit() \\".to_vec(),
        b"-rf --help".to_vec(),
        b"a\0b\0".to_vec(),
        wild,
        control,
        vec![b'y'; 1 << 20],
        b"{\"a\":[1,2]}".to_vec(),
    ];
    modules.rig.feed(&["push", "echo"], sent.join(&b'\n')).fine();
    sent.push(b"two\nlines\r\n\n".to_vec());
    modules.rig.feed(&["push", "echo", "-0"], &sent[sent.len() - 1]).fine();
    modules.rig.drained();
    let mut came: Vec<Vec<u8>> =
        std::fs::read_dir(&out).unwrap().map(|entry| std::fs::read(entry.unwrap().path()).unwrap()).collect();
    came.sort();
    sent.sort();
    assert_eq!(came.len(), sent.len());
    for (came, sent) in came.iter().zip(&sent) {
        assert!(came == sent, "{} bytes came, {} were sent", came.len(), sent.len());
    }
    server.stop();
}

#[test]
fn a_script_tells_how_far_it_is() {
    let modules = Modules::new();
    modules.body("work", "windlass.phase('sort') windlass.progress(3, 9, 'rows') while true do end");
    let server = modules.serve("");
    let id = modules.rig.call(&["push", "work", "x"]).fine().trim_end().to_owned();
    let job = loop {
        let job = modules.rig.call(&["show", &id, "--json"]).json();
        if job["progress"] != Value::Null {
            break job;
        }
    };
    assert_eq!((&job["progress"], &job["phase"]), (&"3/9 rows".into(), &"sort".into()));
    modules.rig.call(&["cancel", &id]).fine();
    modules.rig.drained();
    assert_eq!(modules.rig.call(&["show", &id, "--json"]).json()["state"], "cancelled");
    server.stop();
}

#[test]
fn a_checkpoint_is_there_for_the_next_attempt() {
    let modules = Modules::new();
    modules
        .body("work", "if job.checkpoint then return 'from ' .. job.checkpoint end windlass.checkpoint('row 9') job()");
    let server = modules.serve("attempts = 2\nbackoff = \"1ms\"\nbackoff_max = \"1ms\"\n");
    assert_eq!(modules.told("work", "x"), "succeeded from row 9");
    server.stop();
}

#[test]
fn a_module_that_cannot_be_is_refused_by_the_config() {
    let modules = Modules::new();
    modules.body("m", "");
    let path = modules.dir.join("c.toml");
    for (text, sentence) in [
        ("lua = \"no-such.lua\"\n", "cannot read the module"),
        ("lua = \".\"\n", "it is not a file"),
        ("lua = [\"m.lua\"]\n", "`lua` is an array, expected a string in quotes"),
        ("lua = \"{data}.lua\"\n", "`{data}` in `lua` means one job"),
        ("lua = \"m.lua\"\nrun = [\"true\"]\n", "[queue.q] has `run` and `lua`, expected exactly one"),
        ("lua = \"m.lua\"\nframing = \"raw\"\n", "`framing` belongs to `batch` or `worker`"),
        ("lua = \"m.lua\"\nlua_memory = \"1KiB\"\n", "too little for any Lua"),
        ("run = [\"true\"]\nlua_memory = \"1G\"\n", "`lua_memory` belongs to `lua`"),
    ] {
        std::fs::write(&path, format!("[queue.q]\n{text}")).unwrap();
        modules.rig.call(&["config", "check", path.to_str().unwrap()]).says(sentence).ended(78);
    }
    std::fs::write(&path, "[queue.q]\nlua = \"m.lua\"\nworker_jobs = 5\n").unwrap();
    modules.rig.call(&["config", "check", path.to_str().unwrap()]).fine();
}
