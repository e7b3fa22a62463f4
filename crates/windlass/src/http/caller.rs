//! Who made a request, in words for the audit log: the kernel's word on a socket, the token's holder over TCP.

use super::app::Call;
use super::guard::Peer;

/// The uid at the other end of the Unix socket.
#[derive(Clone, Copy, Debug)]
pub(super) struct Uid(pub(super) Option<u32>);

impl Call {
    /// `ada`, `uid 1000` where nobody has that number, `token` over TCP.
    pub(super) fn caller(&self) -> String {
        match (self.peer, self.uid.0) {
            (Peer::Tcp, _) => "token".into(),
            (Peer::Own | Peer::Stranger, Some(uid)) => user_name(uid).unwrap_or_else(|| format!("uid {uid}")),
            (Peer::Own | Peer::Stranger, None) => "unknown".into(),
        }
    }
}

/// The name of a user, out of the machine's own file: a name server must not hold up a change.
fn user_name(uid: u32) -> Option<String> {
    name_in(&std::fs::read_to_string("/etc/passwd").ok()?, uid)
}

fn name_in(passwd: &str, uid: u32) -> Option<String> {
    let fields = passwd.lines().map(|line| line.split(':').collect::<Vec<_>>());
    let mut found = fields.filter(|fields| fields.get(2).is_some_and(|number| number.parse() == Ok(uid)));
    let name = found.next()?.first().map(|name| (*name).to_owned());
    name.filter(|name| !name.is_empty() && !name.chars().any(char::is_control))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_by_number() {
        let passwd = "root:x:0:0::/root:/bin/sh\n\n:x:5:5::/:\nbroken\nada:x:1000:1000::/home/ada:/bin/sh\n";
        for (uid, name) in [(0, Some("root")), (1000, Some("ada")), (5, None), (7, None)] {
            assert_eq!(name_in(passwd, uid).as_deref(), name, "{uid}");
        }
    }
}
