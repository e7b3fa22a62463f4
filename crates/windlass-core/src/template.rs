//! Fills the templates of an argv with one job: `{}` `{.}` `{/}` `{//}` `{#}` `{queue}` `{id}`.
//!
//! Each argument stays one argument whatever the data holds; nothing here goes near a shell. An argv without a
//! data template gets the data on standard input (a queue) or as its last argument (`windlass run`).

/// What a template can name.
#[derive(Clone, Copy, Debug)]
pub struct Values<'a> {
    pub data: &'a [u8],
    pub queue: &'a str,
    pub id: &'a str,
    /// The job's number in its run, from 1, or its start where there is no run.
    pub number: u64,
}

/// True where the argv itself takes the data, so that it must not come on standard input as well.
pub fn takes_data(argv: &[Vec<u8>]) -> bool {
    const DATA: [&[u8]; 4] = [b"{}", b"{.}", b"{/}", b"{//}"];
    argv.iter().any(|arg| DATA.iter().any(|t| arg.windows(t.len()).any(|w| w == *t)))
}

/// Fills one argument.
pub fn fill(argument: &[u8], values: Values<'_>) -> Vec<u8> {
    let mut filled = Vec::with_capacity(argument.len() + values.data.len());
    let mut rest = argument;
    while let Some(open) = rest.iter().position(|b| *b == b'{') {
        filled.extend_from_slice(&rest[..open]);
        rest = &rest[open..];
        match rest.iter().position(|b| *b == b'}') {
            Some(close) if expand(&rest[1..close], values, &mut filled) => rest = &rest[close + 1..],
            _ => {
                filled.push(b'{');
                rest = &rest[1..];
            }
        }
    }
    filled.extend_from_slice(rest);
    filled
}

/// Writes what the name stands for; false leaves unknown braces as they are.
fn expand(name: &[u8], values: Values<'_>, into: &mut Vec<u8>) -> bool {
    match name {
        b"" => into.extend_from_slice(values.data),
        b"." => into.extend_from_slice(without_extension(values.data)),
        b"/" => into.extend_from_slice(base_name(values.data)),
        b"//" => into.extend_from_slice(directory(values.data)),
        b"#" => into.extend_from_slice(values.number.to_string().as_bytes()),
        b"queue" => into.extend_from_slice(values.queue.as_bytes()),
        b"id" => into.extend_from_slice(values.id.as_bytes()),
        _ => return false,
    }
    true
}

fn base_name(path: &[u8]) -> &[u8] {
    path.iter().rposition(|b| *b == b'/').map_or(path, |slash| &path[slash + 1..])
}

fn directory(path: &[u8]) -> &[u8] {
    match path.iter().rposition(|b| *b == b'/') {
        None => b".",
        Some(0) => b"/",
        Some(slash) => &path[..slash],
    }
}

fn without_extension(path: &[u8]) -> &[u8] {
    let base = base_name(path);
    match base.iter().rposition(|b| *b == b'.') {
        // A leading dot hides a file; it does not begin an extension.
        None | Some(0) => path,
        Some(dot) => &path[..path.len() - (base.len() - dot)],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(argument: &str, data: &str) -> String {
        let values = Values { data: data.as_bytes(), queue: "q", id: "j-1", number: 7 };
        String::from_utf8(fill(argument.as_bytes(), values)).unwrap()
    }

    #[test]
    fn names_of_a_path() {
        for (template, expected) in [
            ("{}", "/a/b.c/d.jpg"),
            ("{.}.thumb.jpg", "/a/b.c/d.thumb.jpg"),
            ("{/}", "d.jpg"),
            ("{//}", "/a/b.c"),
            ("{#}-{queue}-{id}", "7-q-j-1"),
            ("{x} {", "{x} {"),
            ("{{}}", "{/a/b.c/d.jpg}"),
        ] {
            assert_eq!(filled(template, "/a/b.c/d.jpg"), expected);
        }
        assert_eq!(filled("{.} {//} {/}", ".hidden"), ".hidden . .hidden");
        assert_eq!(filled("{//}", "/x"), "/");
    }

    #[test]
    fn data_is_never_a_template() {
        assert_eq!(filled("[{}]", "{id} $(id)"), "[{id} $(id)]");
    }

    #[test]
    fn only_data_templates_take_the_data() {
        assert!(takes_data(&[b"a".to_vec(), b"x{.}y".to_vec()]));
        assert!(!takes_data(&[b"{id}".to_vec(), b"{queue}".to_vec(), b"{#}".to_vec()]));
    }
}
