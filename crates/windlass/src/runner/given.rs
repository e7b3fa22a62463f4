//! A job's data as its process is given it: byte for byte, or, where its table says `data = "yaml"`, as JSON.
//!
//! YAML comes from applications that keep it in their own tables, so it is read with limits: no tags, few aliases, one
//! document, not deep, and what it grows to is bounded as all data is. Keys that Ruby wrote as symbols (`:name`) are
//! read as plain names. It must not be asked for data that nobody runs.

use serde_json::Value;
use std::borrow::Cow;
use windlass_core::job::DATA_MAX;
use windlass_core::policy::{DataFormat, Policy};

/// No document of a job comes near these.
const ALIASES_MOST: usize = 1000;
const REPLAYED_MOST: usize = 100_000;
const DEPTH_MOST: usize = 64;
const NODES_MOST: usize = 250_000;

/// The data as the policy wants it handed over; an error is the sentence of a job that can never be run.
pub(crate) fn given<'a>(policy: &Policy, data: &'a [u8]) -> Result<Cow<'a, [u8]>, String> {
    match policy.data {
        DataFormat::Bytes => Ok(Cow::Borrowed(data)),
        DataFormat::Yaml => json_of(data).map(Cow::Owned),
    }
}

fn json_of(yaml: &[u8]) -> Result<Vec<u8>, String> {
    let refused = |why: &str| format!("the data is not the YAML that is expected: {why}");
    let text = std::str::from_utf8(yaml).map_err(|_| refused("it is not UTF-8"))?;
    let value: Value = serde_saphyr::from_str_with_options(text, limits()).map_err(|e| {
        // The sentence, without the picture of the place that follows it.
        refused(e.to_string().lines().next().unwrap_or("it cannot be read"))
    })?;
    let json = plain_keys(value).map_err(|key| refused(&format!("two keys are called {key:?}")))?.to_string();
    match json.len() > DATA_MAX {
        true => Err(refused(&format!("it grows to {} bytes of JSON, expected at most {DATA_MAX}", json.len()))),
        false => Ok(json.into_bytes()),
    }
}

fn limits() -> serde_saphyr::Options {
    let mut budget = serde_saphyr::Budget::default();
    budget.max_aliases = ALIASES_MOST;
    budget.max_anchors = ALIASES_MOST;
    budget.max_depth = DEPTH_MOST;
    budget.flow_nesting_limit = DEPTH_MOST;
    budget.max_nodes = NODES_MOST;
    budget.max_documents = 1;
    let mut options = serde_saphyr::Options::default();
    options.budget = Some(budget);
    options.alias_limits.max_total_replayed_events = REPLAYED_MOST;
    options.reject_unsupported_tags = true;
    options.emit_comments = false;
    options
}

/// `:name` becomes `name`; the error is a name that is there twice then.
fn plain_keys(value: Value) -> Result<Value, String> {
    match value {
        Value::Array(list) => list.into_iter().map(plain_keys).collect::<Result<_, _>>().map(Value::Array),
        Value::Object(object) => {
            let mut plain = serde_json::Map::with_capacity(object.len());
            for (key, value) in object {
                let name = key.strip_prefix(':').filter(|name| !name.is_empty() && !name.starts_with(':'));
                let name = name.map_or_else(|| key.clone(), str::to_owned);
                if plain.insert(name.clone(), plain_keys(value)?).is_some() {
                    return Err(name);
                }
            }
            Ok(Value::Object(plain))
        }
        other => Ok(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use windlass_core::policy::{Command, Service};

    fn policy(data: DataFormat) -> Policy {
        Policy { data, ..Policy::new("q", Service::Command(Command::default())) }
    }

    fn json(yaml: &str) -> Result<Value, String> {
        given(&policy(DataFormat::Yaml), yaml.as_bytes()).map(|json| serde_json::from_slice(&json).unwrap())
    }

    #[test]
    fn data_is_left_alone_unless_a_table_asks_for_yaml() {
        let bytes = b"--- \xff\n:a: 1\n";
        assert_eq!(given(&policy(DataFormat::Bytes), bytes).unwrap(), &bytes[..]);
        assert!(given(&policy(DataFormat::Yaml), bytes).unwrap_err().contains("not UTF-8"));
    }

    #[test]
    fn what_applications_write_is_read() {
        let expected = serde_json::json!({ "comment_id": 7, "to": { "name": "Ann", "tags": ["a", "b"] }, "ok": true });
        for yaml in [
            "---\n:comment_id: 7\n:to:\n  :name: Ann\n  :tags:\n  - a\n  - b\n:ok: true\n",
            "comment_id: 7\nto: {name: Ann, tags: [a, b]}\nok: true\n",
            "{\"comment_id\": 7, \"to\": {\"name\": \"Ann\", \"tags\": [\"a\", \"b\"]}, \"ok\": true}",
        ] {
            assert_eq!(json(yaml).unwrap(), expected, "{yaml}");
        }
        assert_eq!(json("a: &x {b: 1}\nc: *x\n").unwrap(), serde_json::json!({ "a": { "b": 1 }, "c": { "b": 1 } }));
        assert_eq!(json("7").unwrap(), serde_json::json!(7));
        assert_eq!(json("a: ':b'\n").unwrap(), serde_json::json!({ "a": ":b" }), "values stay as they are");
    }

    #[test]
    fn what_could_do_harm_is_refused_in_words() {
        let bomb = {
            let mut text = "a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n".to_owned();
            (1..9).for_each(|n| {
                let before = format!("*a{}", n - 1);
                text.push_str(&format!("a{n}: &a{n} [{}]\n", vec![before; 10].join(",")));
            });
            text
        };
        let deep = "[".repeat(200) + &"]".repeat(200);
        for wrong in
            [&bomb[..], &deep, "--- !ruby/object:Gem::Installer\ni: x\n", "a: 1\na: 2\n", "a: [", ":a: 1\na: 2\n"]
        {
            let why = json(wrong).unwrap_err();
            assert!(why.starts_with("the data is not the YAML that is expected: ") && !why.contains('\n'), "{why}");
        }
        let long = format!("a: &a {}\nb: [{}]\n", "x".repeat(500_000), ["*a"; 3].join(","));
        assert!(json(&long).unwrap_err().contains("bytes of JSON"));
    }
}
