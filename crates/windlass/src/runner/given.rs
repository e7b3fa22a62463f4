//! A job's data as its process is given it: byte for byte, or, where its table says `data = "yaml"`, as JSON.
//!
//! YAML comes from applications that keep it in their own tables, so it is read with limits: no tags, few aliases, one
//! document, not deep, and what it grows to is bounded as all data is. Keys that Ruby wrote as symbols (`:name`) are
//! read as plain names. It must not be asked for data that nobody runs.

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};
use std::borrow::Cow;
use std::fmt;
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
    let Plain(value) = serde_saphyr::from_str_with_options(text, limits()).map_err(|e| {
        // The sentence, without the picture of the place that follows it.
        refused(e.to_string().lines().next().unwrap_or("it cannot be read"))
    })?;
    let json = value.to_string();
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
    // How much aliases may grow to is bounded by what they replay; one value may be meant often.
    budget.enforce_alias_anchor_ratio = false;
    let mut options = serde_saphyr::Options::default();
    options.budget = Some(budget);
    options.alias_limits.max_total_replayed_events = REPLAYED_MOST;
    options.reject_unsupported_tags = true;
    options.emit_comments = false;
    options
}

/// What JSON can say of a document. Keys are text: `:name` becomes `name`, 7 becomes "7", and a name that is there
/// twice then is an error, so that no value is lost.
struct Plain(Value);

impl<'de> Deserialize<'de> for Plain {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Plain, D::Error> {
        deserializer.deserialize_any(PlainVisitor)
    }
}

struct PlainVisitor;

impl<'de> Visitor<'de> for PlainVisitor {
    type Value = Plain;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("what JSON has, too")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Plain, E> {
        Ok(Plain(value.into()))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Plain, E> {
        Ok(Plain(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Plain, E> {
        Ok(Plain(value.into()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Plain, E> {
        Ok(Plain(value.into()))
    }

    fn visit_str<E>(self, value: &str) -> Result<Plain, E> {
        Ok(Plain(value.into()))
    }

    fn visit_unit<E>(self) -> Result<Plain, E> {
        Ok(Plain(Value::Null))
    }

    fn visit_none<E>(self) -> Result<Plain, E> {
        Ok(Plain(Value::Null))
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Plain, D::Error> {
        Plain::deserialize(deserializer)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Plain, A::Error> {
        let mut list = Vec::new();
        while let Some(Plain(item)) = items.next_element()? {
            list.push(item);
        }
        Ok(Plain(Value::Array(list)))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Plain, A::Error> {
        let mut object = Map::new();
        while let Some((key, Plain(value))) = entries.next_entry::<String, Plain>()? {
            let name = key.strip_prefix(':').filter(|name| !name.is_empty() && !name.starts_with(':'));
            let name = name.map_or_else(|| key.clone(), str::to_owned);
            if object.contains_key(&name) {
                return Err(A::Error::custom(format_args!("two keys are called {name:?}")));
            }
            object.insert(name, value);
        }
        Ok(Plain(Value::Object(object)))
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

    #[test]
    fn the_limits_hold_at_their_own_numbers() {
        let refused = |yaml: &str, word: &str| {
            let why = json(yaml).unwrap_err();
            assert!(why.starts_with("the data is not the YAML that is expected: ") && !why.contains('\n'), "{why}");
            assert!(why.contains(word), "{why}");
        };
        let aliases = |most: usize| format!("a: &a 1\nb: [{}]\n", vec!["*a"; most].join(", "));
        assert_eq!(json(&aliases(ALIASES_MOST)).unwrap()["b"].as_array().map(Vec::len), Some(ALIASES_MOST));
        refused(&aliases(ALIASES_MOST + 1), "alias");
        let anchors = |most: usize| (0..most).map(|n| format!("- &a{n} 1\n")).collect::<String>();
        assert_eq!(json(&anchors(ALIASES_MOST)).unwrap().as_array().map(Vec::len), Some(ALIASES_MOST));
        refused(&anchors(ALIASES_MOST + 1), "anchor");
        let nested = |depth: usize| "[".repeat(depth) + &"]".repeat(depth);
        json(&nested(DEPTH_MOST)).unwrap();
        refused(&nested(DEPTH_MOST + 1), "");
        // The list itself is a node, too.
        let nodes = |most: usize| format!("[{}]", vec!["1"; most - 1].join(","));
        assert_eq!(json(&nodes(NODES_MOST)).unwrap().as_array().map(Vec::len), Some(NODES_MOST - 1));
        refused(&nodes(NODES_MOST + 1), "node");
    }

    #[test]
    fn one_document_is_read_and_a_second_one_is_refused() {
        for one in ["--- 7\n", "--- 7\n...\n", "7\n...\n"] {
            assert_eq!(json(one).unwrap(), serde_json::json!(7), "{one:?}");
        }
        for more in ["--- 7\n--- 8\n", "7\n...\n8\n", "a: 1\n---\nb: 2\n", "--- 7\n---\n", "--- 7\n--- [\n"] {
            let why = json(more).unwrap_err();
            assert!(why.contains("document") && !why.contains('\n'), "{more:?}: {why}");
        }
    }

    #[test]
    fn keys_that_are_no_text_become_text_and_merge_keys_are_merged() {
        assert_eq!(json("1: a\n-2: b\n").unwrap(), serde_json::json!({ "1": "a", "-2": "b" }));
        assert_eq!(json("true: a\n2.5: b\n").unwrap(), serde_json::json!({ "true": "a", "2.5": "b" }));
        assert!(json("1: a\n'1': b\n").unwrap_err().contains("two keys are called \"1\""));
        assert!(json("[a, b]: c\n").is_err());
        // All other values are what they are without us, or refused.
        for value in
            "7 -7 18446744073709551615 18446744073709551616 -9223372036854775809 0.5 1e400 .inf .nan ~ '' yes 0x10"
                .split(' ')
        {
            let same = serde_saphyr::from_str_with_options::<Value>(value, limits());
            assert_eq!(json(value).ok(), same.ok(), "{value}");
        }
        let merged = "base: &base {a: 1, b: 2}\nown:\n  <<: *base\n  b: 3\n";
        assert_eq!(json(merged).unwrap()["own"], serde_json::json!({ "a": 1, "b": 3 }));
        let before = "own:\n  b: 3\n  <<: {a: 1, b: 2}\n";
        assert_eq!(json(before).unwrap()["own"], serde_json::json!({ "a": 1, "b": 3 }));
        let many = "x: &x {a: 1, b: 1}\ny: &y {b: 2, c: 2}\nown:\n  <<: [*x, *y]\n";
        assert_eq!(json(many).unwrap()["own"], serde_json::json!({ "a": 1, "b": 1, "c": 2 }));
        let symbols = "base: &base {:a: 1}\nown:\n  <<: *base\n  :b: 2\n";
        assert_eq!(json(symbols).unwrap()["own"], serde_json::json!({ "a": 1, "b": 2 }));
    }
}
