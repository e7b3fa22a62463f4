//! Where a call may go: what kind of address a name has led to, and whether that kind is allowed.
//!
//! It is asked after a name was resolved and before anything connects, about the very address that is then connected
//! to. Forms that carry an IPv4 address inside (mapped, compatible, 6to4, NAT64, Teredo) are judged by what they carry.

// `core::net` has addresses and nothing that could connect to one.
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// What an address leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// Anywhere in the world.
    Public,
    /// This machine.
    Loopback,
    /// The networks around it.
    Private,
    /// Nothing that a job may ever call: link-local addresses, among them those where a cloud tells secrets,
    /// multicast, broadcast and what is no destination at all.
    Never,
}

impl Reach {
    /// What is said of such an address.
    pub fn words(self) -> &'static str {
        match self {
            Reach::Public => "a public address",
            Reach::Loopback => "an address of this machine",
            Reach::Private => "an address of a private network",
            Reach::Never => "an address that no job may call",
        }
    }

    /// `named`: the config names the host as one that may be inside.
    pub fn is_allowed(self, named: bool) -> bool {
        match self {
            Reach::Public => true,
            Reach::Loopback | Reach::Private => named,
            Reach::Never => false,
        }
    }
}

pub fn reach(address: IpAddr) -> Reach {
    match address {
        IpAddr::V4(address) => reach_v4(address),
        IpAddr::V6(address) => reach_v6(address),
    }
}

fn reach_v4(address: Ipv4Addr) -> Reach {
    match address.octets() {
        // Where clouds tell secrets outside the link-local range.
        [168, 63, 129, 16] | [100, 100, 100, 200] | [192, 0, 0, 192] => Reach::Never,
        // "This network" leads to this machine on some systems.
        [0, ..] | [169, 254, ..] | [224..=255, ..] => Reach::Never,
        [127, ..] => Reach::Loopback,
        [10, ..] | [172, 16..=31, ..] | [192, 168, ..] | [100, 64..=127, ..] => Reach::Private,
        // Protocol assignments, documentation and benchmarks: nothing public lives there.
        [192, 0, 0 | 2, _] | [198, 18 | 19, ..] | [198, 51, 100, _] | [203, 0, 113, _] => Reach::Private,
        [192, 88, 99, _] => Reach::Never,
        _ => Reach::Public,
    }
}

fn reach_v6(address: Ipv6Addr) -> Reach {
    let inner = |high: u16, low: u16| {
        let ([a, b], [c, d]) = (high.to_be_bytes(), low.to_be_bytes());
        reach_v4(Ipv4Addr::new(a, b, c, d))
    };
    match address.segments() {
        [0, 0, 0, 0, 0, 0, 0, 1] => Reach::Loopback,
        [0, 0, 0, 0, 0, 0, 0, 0] => Reach::Never,
        // Mapped, translated and compatible; NAT64; 6to4.
        [0, 0, 0, 0, 0, 0xffff, high, low] | [0, 0, 0, 0, 0xffff, 0, high, low] => inner(high, low),
        [0, 0, 0, 0, 0, 0, high, low] => inner(high, low),
        [0x64, 0xff9b, 0, 0, 0, 0, high, low] => inner(high, low),
        [0x64, 0xff9b, 1, ..] => Reach::Private,
        [0x2002, high, low, ..] => inner(high, low),
        // Teredo has the client's address inside out.
        [0x2001, 0, _, _, _, _, high, low] => inner(!high, !low),
        [0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254] | [0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254] => Reach::Never,
        [0x2001, 0xdb8, ..] | [0x3fff, 0..=0xfff, ..] => Reach::Private,
        [first, ..] => match first {
            0xfe80..=0xfebf | 0xff00..=0xffff => Reach::Never,
            0xfc00..=0xfdff | 0xfec0..=0xfeff => Reach::Private,
            0x2000..=0x3fff => Reach::Public,
            _ => Reach::Never,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_spelling_is_judged_by_where_it_leads() {
        for (expected, addresses) in [
            (Reach::Public, "1.1.1.1 93.184.216.34 172.32.0.1 100.128.0.1 2606:4700::1 ::ffff:8.8.8.8 2002:808:808::1"),
            (Reach::Loopback, "127.0.0.1 127.255.3.4 ::1 ::ffff:127.0.0.1 ::127.0.0.1 64:ff9b::7f00:1 2002:7f00:1::"),
            (Reach::Private, "10.0.0.1 172.16.0.1 172.31.255.255 192.168.1.1 100.64.0.1 198.18.0.1 192.0.2.1"),
            (Reach::Private, "fc00::1 fd12:3456::1 fec0::1 ::ffff:10.1.2.3 64:ff9b::a00:1 64:ff9b:1::1 2001:db8::1"),
            (Reach::Private, "2001:0:1:2:3:4:f5ff:fffe"),
            (
                Reach::Never,
                "169.254.169.254 169.254.0.1 0.0.0.0 0.1.2.3 224.0.0.1 255.255.255.255 240.0.0.1 :: ff02::1",
            ),
            (
                Reach::Never,
                "fe80::1 febf::1 ::ffff:169.254.169.254 ::169.254.169.254 2002:a9fe:a9fe:: 64:ff9b::a9fe:a9fe",
            ),
            (Reach::Never, "fd00:ec2::254 fd20:ce::254 168.63.129.16 100.100.100.200 ::ffff:0:169.254.169.254 4000::1"),
        ] {
            for address in addresses.split(' ') {
                assert_eq!(reach(address.parse().unwrap()), expected, "{address}");
            }
        }
    }

    #[test]
    fn only_a_named_host_may_be_inside_and_none_may_be_beyond() {
        for (reach, named, allowed) in [
            (Reach::Public, false, true),
            (Reach::Loopback, false, false),
            (Reach::Loopback, true, true),
            (Reach::Private, false, false),
            (Reach::Private, true, true),
            (Reach::Never, true, false),
        ] {
            assert_eq!(reach.is_allowed(named), allowed, "{reach:?} {named}");
        }
    }
}
