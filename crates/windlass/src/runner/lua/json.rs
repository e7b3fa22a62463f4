//! Lua values to JSON and back: what a script means by a table.
//!
//! A table with the keys 1 to n is an array, an empty one too; one with text for keys is an object. What JSON cannot
//! say is refused with a sentence: other keys, functions, numbers that are none, text that is not UTF-8, a table inside
//! itself. It must not hang or grow without bound, whatever it is given.

use mlua::{Lua, Table, Value};
use std::collections::BTreeMap;

/// A table that holds itself is at least this deep.
const DEPTH_MAX: usize = 64;

/// A value as JSON of at most so many bytes; an error is a sentence.
pub(super) fn encode(value: &Value, most: usize) -> Result<String, String> {
    let mut encoder = Encoder { text: String::new(), most };
    match encoder.add(value, 0) {
        Ok(()) => Ok(encoder.text),
        Err(Stop::Full) => Err(format!("a value is larger than {most} bytes as JSON")),
        Err(Stop::Not(why)) => Err(why),
    }
}

/// The beginning of a value as JSON, for people.
pub(super) fn beginning(value: &Value, most: usize) -> Result<String, String> {
    let mut encoder = Encoder { text: String::new(), most };
    match encoder.add(value, 0) {
        Ok(()) | Err(Stop::Full) => Ok(encoder.text),
        Err(Stop::Not(why)) => Err(why),
    }
}

/// Why it went no further.
enum Stop {
    Full,
    Not(String),
}

impl From<mlua::Error> for Stop {
    fn from(error: mlua::Error) -> Stop {
        Stop::Not(error.to_string())
    }
}

fn not<T>(why: impl Into<String>) -> Result<T, Stop> {
    Err(Stop::Not(why.into()))
}

struct Encoder {
    text: String,
    most: usize,
}

impl Encoder {
    fn add(&mut self, value: &Value, depth: usize) -> Result<(), Stop> {
        match value {
            Value::Nil => self.push("null"),
            value if *value == Value::NULL => self.push("null"),
            Value::Boolean(flag) => self.push(if *flag { "true" } else { "false" }),
            Value::Integer(number) => self.push(&number.to_string()),
            Value::Number(number) => {
                let finite = serde_json::Number::from_f64(*number);
                let finite = finite.ok_or_else(|| Stop::Not(format!("the number {number} cannot be JSON")))?;
                self.push(&finite.to_string())
            }
            Value::String(text) => self.add_text(&text.as_bytes()),
            Value::Table(_) if depth >= DEPTH_MAX => {
                not(format!("a table is more than {DEPTH_MAX} deep, or holds itself"))
            }
            Value::Table(table) => self.add_table(table, depth + 1),
            other => not(format!("a {} cannot be JSON", other.type_name())),
        }
    }

    fn push(&mut self, text: &str) -> Result<(), Stop> {
        if self.text.len() + text.len() > self.most {
            return Err(Stop::Full);
        }
        self.text.push_str(text);
        Ok(())
    }

    fn add_text(&mut self, bytes: &[u8]) -> Result<(), Stop> {
        let Ok(text) = std::str::from_utf8(bytes) else { return not("a text that is not UTF-8 cannot be JSON") };
        self.push(&serde_json::Value::from(text).to_string())
    }

    fn add_table(&mut self, table: &Table, depth: usize) -> Result<(), Stop> {
        let length = table.raw_len();
        let mut fields: BTreeMap<Vec<u8>, Value> = BTreeMap::new();
        let mut items = 0;
        for pair in table.pairs::<Value, Value>() {
            let (key, value) = pair?;
            match key {
                Value::Integer(at) if at >= 1 && at as u64 <= length as u64 => items += 1,
                Value::String(key) => drop(fields.insert(key.as_bytes().to_vec(), value)),
                other => return not(format!("a key of a table is a {}, expected text or 1 to n", other.type_name())),
            }
        }
        if items > 0 && !fields.is_empty() {
            return not("a table has both numbers and text for keys, which JSON has not");
        }
        if items != length {
            return not("a list has holes");
        }
        if fields.is_empty() {
            self.push("[")?;
            for at in 1..=length {
                if at > 1 {
                    self.push(",")?;
                }
                let item: Value = table.raw_get(at)?;
                self.add(&item, depth)?;
            }
            return self.push("]");
        }
        self.push("{")?;
        for (at, (key, value)) in fields.iter().enumerate() {
            if at > 0 {
                self.push(",")?;
            }
            self.add_text(key)?;
            self.push(":")?;
            self.add(value, depth)?;
        }
        self.push("}")
    }
}

/// The value of a JSON text; `null` is `windlass.null`, since a table cannot hold nil.
pub(super) fn decode(lua: &Lua, text: &[u8]) -> Result<Value, String> {
    let parsed: serde_json::Value = serde_json::from_slice(text).map_err(|e| format!("no JSON: {e}"))?;
    to_lua(lua, parsed).map_err(|e| e.to_string())
}

fn to_lua(lua: &Lua, json: serde_json::Value) -> mlua::Result<Value> {
    Ok(match json {
        serde_json::Value::Null => Value::NULL,
        serde_json::Value::Bool(flag) => Value::Boolean(flag),
        serde_json::Value::Number(number) => match number.as_i64() {
            Some(whole) => Value::Integer(whole),
            None => Value::Number(number.as_f64().unwrap_or(f64::NAN)),
        },
        serde_json::Value::String(text) => Value::String(lua.create_string(text)?),
        serde_json::Value::Array(list) => {
            let table = lua.create_table_with_capacity(list.len(), 0)?;
            for item in list {
                table.raw_push(to_lua(lua, item)?)?;
            }
            Value::Table(table)
        }
        serde_json::Value::Object(fields) => {
            let table = lua.create_table_with_capacity(0, fields.len())?;
            for (key, value) in fields {
                table.raw_set(key, to_lua(lua, value)?)?;
            }
            Value::Table(table)
        }
    })
}
