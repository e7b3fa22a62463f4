//! What a person can say to the view, and what becomes of the view then. It knows no terminal.

use super::frame::{Part, SORTS, View};
use super::gather::Scene;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Key {
    Char(char),
    Enter,
    Escape,
    Back,
    Up,
    Down,
    PageUp,
    PageDown,
    Home,
    End,
}

/// What the view cannot do by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Said {
    Nothing,
    /// Look again, now.
    Look,
    Quit,
}

/// The keys of what a terminal sent at once; what it means by other sequences is nothing to us.
pub(super) fn read(bytes: &[u8]) -> Vec<Key> {
    let mut keys = Vec::new();
    let text = String::from_utf8_lossy(bytes);
    let mut rest: &str = &text;
    while let Some(first) = rest.chars().next() {
        let (key, length) = match sequence(rest) {
            Some(found) => found,
            None => (plain(first), first.len_utf8()),
        };
        keys.extend(key);
        rest = &rest[length..];
    }
    keys
}

fn plain(c: char) -> Option<Key> {
    match c {
        '\r' | '\n' => Some(Key::Enter),
        '\u{1b}' => Some(Key::Escape),
        '\u{7f}' | '\u{8}' => Some(Key::Back),
        c if c.is_control() || c == char::REPLACEMENT_CHARACTER => None,
        c => Some(Key::Char(c)),
    }
}

/// A key that comes as several characters, and how many bytes they are.
fn sequence(text: &str) -> Option<(Option<Key>, usize)> {
    let inner = text.strip_prefix("\u{1b}[").or_else(|| text.strip_prefix("\u{1b}O"))?;
    let end = inner.find(|c: char| c.is_ascii_alphabetic() || c == '~')?;
    let key = match &inner[..=end] {
        "A" => Some(Key::Up),
        "B" => Some(Key::Down),
        "H" | "1~" => Some(Key::Home),
        "F" | "4~" => Some(Key::End),
        "5~" => Some(Key::PageUp),
        "6~" => Some(Key::PageDown),
        _ => None,
    };
    Some((key, 2 + end + 1))
}

impl View {
    pub(super) fn say(&mut self, key: Key, scene: &Scene) -> Said {
        if let Some(typed) = self.typing.take() {
            self.type_filter(typed, key);
            return Said::Nothing;
        }
        let page = self.rows_shown.max(1);
        match key {
            Key::Char('q' | 'Q') => return Said::Quit,
            Key::Char('?' | 'h') => self.help = !self.help,
            Key::Escape if self.help => self.help = false,
            Key::Escape => (self.part, self.from, self.filter) = (None, 0, String::new()),
            Key::Char('p' | ' ') => {
                self.paused = !self.paused;
                return if self.paused { Said::Nothing } else { Said::Look };
            }
            Key::Char('r') => return Said::Look,
            Key::Char('s') => self.sort = (self.sort + 1) % SORTS.len(),
            Key::Char('/') => self.typing = Some(self.filter.clone()),
            Key::Char('0' | 'a') => (self.part, self.from) = (None, 0),
            Key::Char(digit @ '1'..='5') => {
                let at = digit as usize - '1' as usize;
                (self.part, self.from) = (Part::ALL.get(at).copied(), 0);
            }
            Key::Down | Key::Char('j') => self.from += 1,
            Key::Up | Key::Char('k') => self.from = self.from.saturating_sub(1),
            Key::PageDown => self.from += page,
            Key::PageUp => self.from = self.from.saturating_sub(page),
            Key::Home => self.from = 0,
            Key::End => self.from = usize::MAX,
            Key::Char(_) | Key::Enter | Key::Back => {}
        }
        // Arrows move through one part: that of the queues, unless another was chosen.
        if self.from > 0 && self.part.is_none() {
            self.part = Some(if scene.status.is_null() { Part::Documents } else { Part::Queues });
        }
        Said::Nothing
    }

    fn type_filter(&mut self, mut typed: String, key: Key) {
        match key {
            Key::Enter => return,
            Key::Escape => {
                self.filter.clear();
                return;
            }
            Key::Back => drop(typed.pop()),
            Key::Char(c) => typed.push(c),
            Key::Up | Key::Down | Key::PageUp | Key::PageDown | Key::Home | Key::End => {}
        }
        self.filter.clone_from(&typed);
        self.from = 0;
        self.typing = Some(typed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_terminals_send() {
        assert_eq!(read(b"q\x1b[A\x1bOB\x1b[5~"), [Key::Char('q'), Key::Up, Key::Down, Key::PageUp]);
        assert_eq!(read(b"\x1b"), [Key::Escape]);
        assert_eq!(read(b"\x1b[1;5C\x01\xffx"), [Key::Char('x')], "what means nothing here is nothing");
        assert_eq!(read("/ä\r\u{7f}".as_bytes()), [Key::Char('/'), Key::Char('ä'), Key::Enter, Key::Back]);
    }

    #[test]
    fn what_keys_do() {
        let (mut view, scene) = (View::default(), Scene::default());
        let say = |view: &mut View, text: &str| {
            read(text.as_bytes()).into_iter().map(|key| view.say(key, &scene)).last().unwrap()
        };
        assert_eq!(say(&mut view, "p"), Said::Nothing);
        assert!(view.paused);
        assert_eq!(say(&mut view, "p"), Said::Look, "what was missed is looked at, at once");
        say(&mut view, "/mqil\u{7f}\u{7f}\u{7f}ail");
        assert_eq!((view.filter.as_str(), view.typing.is_some()), ("mail", true), "a `q` in a filter is a letter");
        say(&mut view, "\r");
        assert_eq!((view.filter.as_str(), view.typing.is_some()), ("mail", false));
        say(&mut view, "2\x1b[B\x1b[B\x1b[A");
        assert_eq!((view.part, view.from), (Some(Part::Running), 1));
        say(&mut view, "\x1b");
        assert_eq!((view.part, view.from, view.filter.as_str()), (None, 0, ""));
        assert_eq!(say(&mut view, "?"), Said::Nothing);
        assert!(view.help);
        assert_eq!(say(&mut view, "q"), Said::Quit);
    }
}
