//! Values of the config as everybody may see them: what names itself a secret keeps it.
//!
//! A config is shown over the API and stands in answers to a reload. Secrets belong in files; those that stand in it
//! all the same, in variables, arguments, headers or addresses, are known by their names.

use toml::Value;

const SHOWN: &str = "***";

/// A name with one of these in it is that of a secret.
const SECRET: [&str; 12] = [
    "SECRET",
    "TOKEN",
    "PASSWORD",
    "PASSWD",
    "CREDENTIAL",
    "_KEY",
    "APIKEY",
    "API-KEY",
    "ACCESS-KEY",
    "PRIVATE-KEY",
    "AUTHORIZATION",
    "COOKIE",
];

/// A value, as TOML, without the secrets in it; one that has none is left as it is.
pub(super) fn masked(value: &str) -> String {
    let Ok(mut table) = format!("of = {value}").parse::<toml::Table>() else { return value.to_owned() };
    match table.get_mut("of").filter(|of| !matches!(of, Value::String(_) | Value::Array(_) | Value::Table(_))) {
        Some(_) => value.to_owned(),
        None => match table.remove("of").map(|of| (mask(of.clone()), of)) {
            Some((shown, of)) if shown != of => shown.to_string(),
            _ => value.to_owned(),
        },
    }
}

fn mask(value: Value) -> Value {
    match value {
        Value::String(text) => Value::String(of_address(&text)),
        Value::Array(words) => Value::Array(of_arguments(words)),
        Value::Table(table) => {
            let shown = |(name, value): (String, Value)| match value {
                Value::String(_) if is_secret(&name) => (name, SHOWN.into()),
                other => (name, mask(other)),
            };
            Value::Table(table.into_iter().map(shown).collect())
        }
        other => other,
    }
}

/// `--token x`, `TOKEN=x`, `Authorization: x`, and addresses.
fn of_arguments(words: Vec<Value>) -> Vec<Value> {
    let mut of_option = false;
    let mask = |word: Value| {
        let Value::String(text) = word else { return mask(word) };
        let follows = std::mem::replace(&mut of_option, text.starts_with("--") && is_secret(&text));
        let named = |at: usize| text[..at].chars().all(|c| c.is_ascii_alphanumeric() || "-_".contains(c));
        let end = text.find(['=', ':']).filter(|at| named(*at));
        Value::String(match end {
            _ if follows => SHOWN.to_owned(),
            Some(at) if is_secret(&text[..at]) => {
                of_option = false;
                let space = if text[at + 1..].starts_with(' ') { " " } else { "" };
                format!("{}{space}{SHOWN}", &text[..=at])
            }
            _ => of_address(&text),
        })
    };
    words.into_iter().map(mask).collect()
}

/// An address is shown without its password, and without what its query calls a secret.
fn of_address(text: &str) -> String {
    let Some((scheme, rest)) = text.split_once("://") else { return text.to_owned() };
    let (authority, rest) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    let authority = match authority.rsplit_once('@') {
        Some((user, host)) => {
            format!("{}@{host}", user.split_once(':').map_or(user.to_owned(), |(user, _)| format!("{user}:{SHOWN}")))
        }
        None => authority.to_owned(),
    };
    let (path, query) = rest.split_once('?').map_or((rest, None), |(path, query)| (path, Some(query)));
    let part = |part: &str| match part.split_once('=') {
        Some((name, _)) if is_secret(name) => format!("{name}={SHOWN}"),
        _ => part.to_owned(),
    };
    let query = query.map(|query| format!("?{}", query.split('&').map(part).collect::<Vec<_>>().join("&")));
    format!("{scheme}://{authority}{path}{}", query.unwrap_or_default())
}

fn is_secret(name: &str) -> bool {
    let name = name.to_ascii_uppercase();
    SECRET.iter().any(|word| name.contains(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_speaks_of_secrets_is_masked() {
        for (value, shown) in [
            ("{ API_TOKEN = \"s3cret\", LEVEL = \"3\" }", "{ API_TOKEN = \"***\", LEVEL = \"3\" }"),
            (
                "[\"curl\", \"-H\", \"Authorization: Bearer x\", \"{}\"]",
                "[\"curl\", \"-H\", \"Authorization: ***\", \"{}\"]",
            ),
            ("[\"p\", \"--token\", \"x\", \"y\"]", "[\"p\", \"--token\", \"***\", \"y\"]"),
            ("[\"p\", \"--api-key=x\", \"DB_PASSWORD=y\"]", "[\"p\", \"--api-key=***\", \"DB_PASSWORD=***\"]"),
            ("\"https://ann:pw@h/x?page=1&token=t\"", "\"https://ann:***@h/x?page=1&token=***\""),
            ("[\"p\", \"postgres://ann:pw@db/x\"]", "[\"p\", \"postgres://ann:***@db/x\"]"),
            (
                "{ from = [\"list\", \"--secret=x\"], queue = \"q\" }",
                "{ from = [\"list\", \"--secret=***\"], queue = \"q\" }",
            ),
        ] {
            assert_eq!(masked(value), shown, "{value}");
        }
        for plain in
            ["{}", "4", "\"7s\"", "[\"sh\", \"-c\", \"a: b=c\"]", "\"https://h/{queue}?n={attempt}\"", "not toml"]
        {
            assert_eq!(masked(plain), plain);
        }
    }
}
