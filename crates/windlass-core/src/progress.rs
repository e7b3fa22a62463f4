//! What a job's words about its progress mean, and under which key others find them.
//!
//! Words are `N/M TEXT`, as `docs/runners.md` has them; a key is made of a template such as
//! `progress/{subject_type}/{subject_id}`, and is one that memcached takes: what it forbids is written as in a URL. It
//! must not know who asks.

use std::fmt;

/// The longest key of a memcached.
pub const KEY_MAX: usize = 250;

/// Words about progress, taken apart.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Progress<'a> {
    /// How many of how many.
    pub count: Option<(u64, u64)>,
    /// What stands behind the count; all of the words where there is none.
    pub text: &'a str,
}

impl<'a> Progress<'a> {
    pub fn read(words: &'a str) -> Progress<'a> {
        let words = words.trim();
        let (first, text) = words.split_once(char::is_whitespace).unwrap_or((words, ""));
        let count = first.split_once('/').and_then(|(done, total)| Some((done.parse().ok()?, total.parse().ok()?)));
        match count {
            Some(_) => Progress { count, text: text.trim_start() },
            None => Progress { count, text: words },
        }
    }

    /// Whole percents, rounded down, so that 100 means all; none where nobody can say.
    pub fn percent(&self) -> Option<u8> {
        let (done, total) = self.count.filter(|(_, total)| *total > 0)?;
        let percent = u128::from(done.min(total)) * 100 / u128::from(total);
        u8::try_from(percent).ok()
    }
}

/// What of a job may stand in a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    SubjectType,
    SubjectId,
    Key,
    Id,
    Queue,
}

impl Part {
    const ALL: [Part; 5] = [Part::SubjectType, Part::SubjectId, Part::Key, Part::Id, Part::Queue];

    fn word(self) -> &'static str {
        match self {
            Part::SubjectType => "subject_type",
            Part::SubjectId => "subject_id",
            Part::Key => "key",
            Part::Id => "id",
            Part::Queue => "queue",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Piece {
    Text(String),
    Of(Part),
}

/// A template of keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyTemplate(Vec<Piece>);

/// What a template is filled with.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    /// Type and id of the record that the job is about.
    pub subject: Option<(&'a str, &'a str)>,
    /// The key that its pusher made it unique by.
    pub key: Option<&'a str>,
    pub id: &'a str,
    pub queue: &'a str,
}

/// Why a job has no key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoKey {
    /// The job lacks what the template names.
    Lacks,
    TooLong(usize),
}

impl fmt::Display for NoKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NoKey::Lacks => write!(f, "the job lacks what the key is made of"),
            NoKey::TooLong(length) => write!(f, "the key has {length} bytes, expected at most {KEY_MAX}"),
        }
    }
}

impl Default for KeyTemplate {
    /// The record that a job is about is what an application knows.
    fn default() -> KeyTemplate {
        let text = |text: &str| Piece::Text(text.to_owned());
        let (kind, id) = (Piece::Of(Part::SubjectType), Piece::Of(Part::SubjectId));
        KeyTemplate(vec![text("progress/"), kind, text("/"), id])
    }
}

impl KeyTemplate {
    /// Reads a template; every job must get a key of its own, or of its record's.
    pub fn read(text: &str) -> Result<KeyTemplate, String> {
        let expected = || {
            let words: Vec<String> = Part::ALL.iter().map(|part| format!("{{{}}}", part.word())).collect();
            format!("expected text with {}", words.join(", "))
        };
        let (mut pieces, mut rest) = (Vec::new(), text);
        while let Some((before, after)) = rest.split_once('{') {
            let Some((name, behind)) = after.split_once('}') else {
                return Err(format!("{text:?} has a {{ without a }}; {}", expected()));
            };
            let part = Part::ALL.into_iter().find(|part| part.word() == name);
            let part = part.ok_or_else(|| format!("{text:?} names {{{name}}}; {}", expected()))?;
            pieces.extend([Piece::Text(escaped(before)), Piece::Of(part)]);
            rest = behind;
        }
        pieces.push(Piece::Text(escaped(rest)));
        pieces.retain(|piece| !matches!(piece, Piece::Text(text) if text.is_empty()));
        let names_one = |piece: &Piece| matches!(piece, Piece::Of(Part::SubjectId | Part::Key | Part::Id));
        match pieces.iter().any(names_one) {
            true => Ok(KeyTemplate(pieces)),
            false => {
                Err(format!("{text:?} is the same for many jobs, expected {{subject_id}}, {{key}} or {{id}} in it"))
            }
        }
    }

    /// The key of a job.
    pub fn fill(&self, facts: &Facts<'_>) -> Result<String, NoKey> {
        let mut key = String::new();
        for piece in &self.0 {
            let part = match piece {
                Piece::Text(text) => {
                    key.push_str(text);
                    continue;
                }
                Piece::Of(Part::SubjectType) => facts.subject.map(|(kind, _)| kind),
                Piece::Of(Part::SubjectId) => facts.subject.map(|(_, id)| id),
                Piece::Of(Part::Key) => facts.key,
                Piece::Of(Part::Id) => Some(facts.id),
                Piece::Of(Part::Queue) => Some(facts.queue),
            };
            key.push_str(&escaped(part.ok_or(NoKey::Lacks)?));
        }
        if key.len() > KEY_MAX { Err(NoKey::TooLong(key.len())) } else { Ok(key) }
    }
}

impl fmt::Display for KeyTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|piece| match piece {
            Piece::Text(text) => write!(f, "{}", unescaped(text)),
            Piece::Of(part) => write!(f, "{{{}}}", part.word()),
        })
    }
}

/// Blanks and control characters end a key, so they are `%XX`; so is `%`, or two keys could become one.
fn escaped(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '%' | ' ' | '\0'..='\x1f' | '\x7f' => safe.push_str(&format!("%{:02X}", u32::from(letter))),
            other => safe.push(other),
        }
    }
    safe
}

fn unescaped(text: &str) -> String {
    let mut parts = text.split('%');
    let mut plain = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (code, rest) = part.split_at(2);
        plain.extend(u8::from_str_radix(code, 16).ok().map(char::from));
        plain.push_str(rest);
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_about_progress_are_a_count_and_a_text() {
        for (words, count, text, percent) in [
            ("3/10 pages", Some((3, 10)), "pages", Some(30)),
            ("  3/10   of all pages ", Some((3, 10)), "of all pages", Some(30)),
            ("999/1000", Some((999, 1000)), "", Some(99)),
            ("1000/1000", Some((1000, 1000)), "", Some(100)),
            ("12/10", Some((12, 10)), "", Some(100)),
            ("18446744073709551615/18446744073709551615", Some((u64::MAX, u64::MAX)), "", Some(100)),
            ("3/0 x", Some((3, 0)), "x", None),
            ("nearly there", None, "nearly there", None),
            ("-1/3 x", None, "-1/3 x", None),
            ("", None, "", None),
        ] {
            let read = Progress::read(words);
            assert_eq!((read.count, read.text, read.percent()), (count, text, percent), "{words:?}");
        }
    }

    const JOB: Facts<'_> = Facts { subject: Some(("Upload", "7")), key: None, id: "01j", queue: "spam" };

    #[test]
    fn a_key_is_filled_with_what_the_job_has() {
        for (template, key) in [
            ("progress/{subject_type}/{subject_id}", Ok("progress/Upload/7".to_owned())),
            ("{id}", Ok("01j".to_owned())),
            ("a b/{queue}:{id}%", Ok("a%20b/spam:01j%25".to_owned())),
            ("p/{key}", Err(NoKey::Lacks)),
        ] {
            let read = KeyTemplate::read(template).unwrap();
            assert_eq!((read.to_string(), read.fill(&JOB)), (template.to_owned(), key));
        }
        let template = KeyTemplate::read("progress/{subject_type}/{subject_id}").unwrap();
        assert_eq!(template, KeyTemplate::default());
        assert_eq!(template.fill(&Facts { subject: None, ..JOB }), Err(NoKey::Lacks));
        assert_eq!(KeyTemplate::read("{key}").unwrap().fill(&Facts { key: Some("k"), ..JOB }), Ok("k".to_owned()));
    }

    #[test]
    fn a_key_is_one_that_memcached_takes_or_is_refused() {
        let template = KeyTemplate::read("{subject_id}").unwrap();
        let fill = |id: &str| template.fill(&Facts { subject: Some(("T", id)), ..JOB });
        assert_eq!(fill("a b\tc\r\nset x\0\x7f%20é"), Ok("a%20b%09c%0D%0Aset%20x%00%7F%2520é".to_owned()));
        assert_eq!(fill(&"x".repeat(KEY_MAX)), Ok("x".repeat(KEY_MAX)));
        assert_eq!(fill(&" ".repeat(84)), Err(NoKey::TooLong(252)));
        assert_eq!(NoKey::TooLong(252).to_string(), "the key has 252 bytes, expected at most 250");
    }

    #[test]
    fn a_template_that_says_nothing_of_a_job_is_refused() {
        for (template, why) in [
            ("progress", "\"progress\" is the same for many jobs, expected {subject_id}, {key} or {id} in it"),
            ("{queue}/{subject_type}", "is the same for many jobs"),
            ("{id", "has a { without a }"),
            ("{ids}", "names {ids}; expected text with {subject_type}, {subject_id}, {key}, {id}, {queue}"),
        ] {
            let refused = KeyTemplate::read(template).unwrap_err();
            assert!(refused.contains(why), "{refused}");
        }
    }
}
