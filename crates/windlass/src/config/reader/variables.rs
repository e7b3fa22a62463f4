//! `${NAME}` and `${NAME:-text}` in the strings of a config: variables of the reader's environment, filled in before
//! anything is checked. `$${` is a plain `${`. Strings within arrays are left alone: they are the arguments of
//! commands, and a shell among those has variables of its own. Tables within arrays, such as stages, are tables.

use super::{Source, Value};
use crate::error::Failure;
use std::borrow::Cow;
use toml::de::{DeTable, DeValue};

pub(super) fn fill(table: &mut DeTable<'_>, source: &Source<'_>) -> Result<(), Failure> {
    for (_, value) in table.iter_mut() {
        fill_value(value, source)?;
    }
    Ok(())
}

pub(super) fn fill_value(value: &mut Value<'_>, source: &Source<'_>) -> Result<(), Failure> {
    let place = value.span();
    match value.get_mut() {
        DeValue::Table(table) => fill(table, source),
        DeValue::Array(items) => {
            let mut tables = items.iter_mut().filter(|item| item.get_ref().is_table());
            tables.try_for_each(|table| fill_value(table, source))
        }
        DeValue::String(text) if text.contains("${") => {
            let variable = |name: &str| std::env::var_os(name);
            let filled = filled(text, &|name| variable(name)?.into_string().ok());
            *text = Cow::Owned(filled.map_err(|why| source.refuse(place, &why))?);
            Ok(())
        }
        _ => Ok(()),
    }
}

/// The text with its variables filled in, or why not.
fn filled(text: &str, variable: &dyn Fn(&str) -> Option<String>) -> Result<String, String> {
    let (mut filled, mut rest) = (String::new(), text);
    while let Some((before, after)) = rest.split_once("${") {
        if let Some(before) = before.strip_suffix('$') {
            filled.push_str(&format!("{before}${{"));
            rest = after;
            continue;
        }
        let (inner, after) = after.split_once('}').ok_or_else(|| format!("`${{` without `}}` in {text:?}"))?;
        let (name, default) = inner.split_once(":-").map_or((inner, None), |(name, default)| (name, Some(default)));
        let plain = !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        if !plain {
            return Err(format!(
                "`${{{inner}}}` names no variable; expected ${{NAME}} or ${{NAME:-text}}, or $${{ for ${{"
            ));
        }
        let value = variable(name).filter(|value| !value.is_empty() || default.is_none());
        let unset =
            || format!("the variable {name} is not set; set it where the config is read, or write ${{{name}:-text}}");
        filled.push_str(before);
        filled.push_str(&value.or_else(|| default.map(str::to_owned)).ok_or_else(unset)?);
        rest = after;
    }
    filled.push_str(rest);
    Ok(filled)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_are_filled_in() {
        let variable = |name: &str| match name {
            "HOME" => Some("/home/ann".to_owned()),
            "EMPTY" => Some(String::new()),
            _ => None,
        };
        for (text, expected) in [
            ("${HOME}/x", "/home/ann/x"),
            ("a${NONE:-b c}d${HOME}", "ab cd/home/ann"),
            ("${EMPTY}|${EMPTY:-x}", "|x"),
            ("$${HOME} $HOME", "${HOME} $HOME"),
            ("${NONE:-}", ""),
        ] {
            assert_eq!(filled(text, &variable).as_deref(), Ok(expected), "{text}");
        }
        for (text, why) in [
            ("${NONE}", "the variable NONE is not set; set it where the config is read, or write ${NONE:-text}"),
            ("${f%.x}", "`${f%.x}` names no variable; expected ${NAME} or ${NAME:-text}, or $${ for ${"),
            ("${HOME", "`${` without `}` in \"${HOME\""),
        ] {
            assert_eq!(filled(text, &variable).unwrap_err(), why);
        }
    }
}
