//! The query of a request: every key is known, stands once, and decodes to text; all else is refused.

use super::problem::Problem;
use crate::store::Durability;

/// The decoded pairs of a query string.
#[derive(Debug, Default)]
pub(super) struct Query(Vec<(String, String)>);

impl Query {
    /// Refuses keys that the route does not have: a misspelt option must not be silently without effect.
    pub(super) fn parse(text: Option<&str>, known: &[&str]) -> Result<Query, Problem> {
        let mut pairs: Vec<(String, String)> = Vec::new();
        for item in text.unwrap_or("").split('&').filter(|item| !item.is_empty()) {
            let (key, value) = item.split_once('=').unwrap_or((item, ""));
            let key = decode(key)?;
            if !known.contains(&key.as_str()) {
                let text = format!("unknown query key {key:?}");
                return Err(Problem::malformed(text).hint(match known {
                    [] => "this route has none".to_owned(),
                    known => format!("this route knows {}", known.join(", ")),
                }));
            }
            if pairs.iter().any(|(before, _)| *before == key) {
                return Err(Problem::malformed(format!("the query key {key} stands twice")));
            }
            pairs.push((key, decode(value)?));
        }
        Ok(Query(pairs))
    }

    pub(super) fn get(&self, key: &str) -> Option<&str> {
        self.0.iter().find(|(k, _)| k == key).map(|(_, value)| value.as_str())
    }

    pub(super) fn needed(&self, key: &str) -> Result<&str, Problem> {
        self.get(key).ok_or_else(|| Problem::malformed(format!("the query key {key} is missing")))
    }

    /// A plain decimal number between two bounds.
    pub(super) fn number(&self, key: &str, from: u64, to: u64) -> Result<Option<u64>, Problem> {
        let Some(text) = self.get(key) else { return Ok(None) };
        let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        let number = digits.then(|| text.parse().ok()).flatten().filter(|n| (from..=to).contains(n));
        number.map(Some).ok_or_else(|| Problem::malformed(format!("{key}={text}: expected a number from {from} to {to}")))
    }

    pub(super) fn truth(&self, key: &str) -> Result<Option<bool>, Problem> {
        match self.get(key) {
            None => Ok(None),
            Some("true") => Ok(Some(true)),
            Some("false") => Ok(Some(false)),
            Some(text) => Err(Problem::malformed(format!("{key}={text}: expected true or false"))),
        }
    }

    pub(super) fn durability(&self) -> Result<Option<Durability>, Problem> {
        self.get("durability").map(durability).transpose()
    }
}

pub(super) fn durability(text: &str) -> Result<Durability, Problem> {
    let all = [Durability::Os, Durability::Full];
    let found = all.into_iter().find(|durability| durability.word() == text);
    found.ok_or_else(|| Problem::refused(format!("expected a durability (full or os), got: {text}")))
}

fn decode(text: &str) -> Result<String, Problem> {
    let bad = || Problem::malformed(format!("the query holds a bad escape: {text}"));
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'+' => b' ',
            b'%' => {
                let mut digit = || rest.next().and_then(|b| char::from(b).to_digit(16));
                let (high, low) = digit().zip(digit()).ok_or_else(bad)?;
                (high << 4 | low) as u8
            }
            plain => plain,
        });
    }
    String::from_utf8(bytes).map_err(|_| bad())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decodes_and_refuses() {
        let query = Query::parse(Some("selector=state%3Afailed+queue:a%26b&limit=7"), &["selector", "limit"]).unwrap();
        assert_eq!(query.get("selector"), Some("state:failed queue:a&b"));
        assert_eq!(query.number("limit", 1, 10).unwrap(), Some(7));
        for bad in ["limit=1&limit=1", "other=1", "limit=%2", "limit=%zz", "limit=%ff", "%6cimit=1&limit=2"] {
            assert!(Query::parse(Some(bad), &["limit"]).is_err(), "{bad}");
        }
    }

    #[test]
    fn numbers_are_plain_and_bounded() {
        for bad in ["-1", "", "1e3", "+1", " 1", "0", "1001", "99999999999999999999"] {
            let query = Query(vec![("limit".into(), bad.into())]);
            assert!(query.number("limit", 1, 1000).is_err(), "{bad:?}");
        }
    }
}
