//! What `sharenfs` says: who may come, from where, and as whom.
//!
//! The words are those of exports(5) and of `zfs share`, parted by commas: `on`, or
//! `rw=@192.168.0.0/24:[fd00::1],ro,all_squash`. A word that is not known, or asks for what is not
//! done here, is refused by its name.
//!
//! What it keeps true: nobody is let in whom no word names. Of several words that name a client the
//! closest counts: an address before a network, a smaller network before a greater, and everyone
//! last; where two are as close, the one that gives less.

use std::net::IpAddr;

/// The user and group nobody, whom root is taken for. Source: exports(5).
const NOBODY: u32 = 65534;

/// Clients that one word names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Client {
    /// `*`
    Everyone,
    /// An address and how many of its bits count.
    Net(IpAddr, u8),
    /// To be looked up ([`Options::resolve`]) before anybody can be it.
    Name(String),
}

/// What `sharenfs` says, understood.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// Who may come, and whether he may write.
    clients: Vec<(Client, bool)>,
    /// Who is root if he says so, beside everyone with `no_root_squash`.
    roots: Vec<Client>,
    root_squash: bool,
    all_squash: bool,
    anon: (u32, u32),
    /// Only from ports that root may use.
    secure: bool,
    /// Changes are stable when they are answered.
    pub(crate) sync: bool,
}

/// What a client may.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Admission {
    pub(crate) writes: bool,
    pub(crate) root: bool,
    pub(crate) all_squash: bool,
    pub(crate) anon: (u32, u32),
}

fn bits(ip: IpAddr) -> u8 {
    if ip.is_ipv4() { 32 } else { 128 }
}

impl Client {
    fn parse(text: &str) -> Result<Client, String> {
        let bad = || format!("'{text}' is neither an address nor a network nor a host's name");
        let plain = text.strip_prefix('@').unwrap_or(text);
        if plain == "*" {
            return Ok(Client::Everyone);
        }
        let (host, length) = match plain.split_once('/') {
            Some((host, length)) => (host, Some(length)),
            None => (plain, None),
        };
        let host = host.strip_prefix('[').and_then(|h| h.strip_suffix(']')).unwrap_or(host);
        if let Ok(ip) = host.parse::<IpAddr>() {
            let ip = ip.to_canonical();
            let length = match length {
                None => bits(ip),
                Some(n) => n.parse().ok().filter(|n| *n <= bits(ip)).ok_or_else(bad)?,
            };
            return Ok(Client::Net(ip, length));
        }
        let named = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'_');
        if text.starts_with('@') {
            return Err(format!("'{text}': netgroups are not supported"));
        }
        if length.is_some() || host.is_empty() || !host.bytes().all(named) {
            return Err(bad());
        }
        Ok(Client::Name(host.to_owned()))
    }

    /// How close it comes to an address: None if it is not meant.
    fn names(&self, ip: IpAddr) -> Option<u8> {
        match (self, ip) {
            (Client::Everyone, _) => Some(0),
            (Client::Net(IpAddr::V4(net), n), IpAddr::V4(ip)) => {
                let mask = u32::MAX.checked_shl(32 - u32::from(*n)).unwrap_or(0);
                (net.to_bits() & mask == ip.to_bits() & mask).then_some(1 + n + (128 - 32))
            }
            (Client::Net(IpAddr::V6(net), n), IpAddr::V6(ip)) => {
                let mask = u128::MAX.checked_shl(128 - u32::from(*n)).unwrap_or(0);
                (net.to_bits() & mask == ip.to_bits() & mask).then_some(1 + n)
            }
            _ => None,
        }
    }
}

/// Clients parted by colons; those of an IPv6 address are within brackets.
fn clients(text: &str) -> Result<Vec<Client>, String> {
    let (mut out, mut at, mut deep) = (Vec::new(), 0, false);
    for (i, c) in text.char_indices() {
        match c {
            '[' => deep = true,
            ']' => deep = false,
            ':' if !deep => {
                out.push(Client::parse(&text[at..i])?);
                at = i + 1;
            }
            _ => {}
        }
    }
    out.push(Client::parse(&text[at..])?);
    Ok(out)
}

fn id(word: &str, value: Option<&str>) -> Result<u32, String> {
    value.and_then(|v| v.parse().ok()).ok_or_else(|| format!("'{word}' needs a number"))
}

impl Options {
    /// Understands the property's value; None for `off`.
    pub fn parse(text: &str) -> Result<Option<Options>, String> {
        let mut options = Options {
            clients: Vec::new(),
            roots: Vec::new(),
            root_squash: true,
            all_squash: false,
            anon: (NOBODY, NOBODY),
            secure: true,
            sync: true,
        };
        match text {
            "off" => return Ok(None),
            "on" => {
                options.clients.push((Client::Everyone, true));
                return Ok(Some(options));
            }
            _ => {}
        }
        for word in text.split(',') {
            let (name, value) = match word.split_once('=') {
                Some((name, value)) => (name, Some(value)),
                None => (word, None),
            };
            match (name, value) {
                ("rw" | "ro", value) => {
                    let named = value.map_or(Ok(vec![Client::Everyone]), clients)?;
                    options.clients.extend(named.into_iter().map(|c| (c, name == "rw")));
                }
                ("root", Some(value)) => options.roots.extend(clients(value)?),
                ("root_squash", None) => options.root_squash = true,
                ("no_root_squash", None) => options.root_squash = false,
                ("all_squash", None) => options.all_squash = true,
                ("no_all_squash", None) => options.all_squash = false,
                ("anonuid", value) => options.anon.0 = id(name, value)?,
                ("anongid", value) => options.anon.1 = id(name, value)?,
                ("anon", value) => options.anon = (id(name, value)?, id(name, value)?),
                ("secure", None) => options.secure = true,
                ("insecure", None) => options.secure = false,
                ("sync", None) => options.sync = true,
                ("async", None) => options.sync = false,
                // What is so in any case.
                ("sec", Some("sys")) | ("no_subtree_check" | "nocrossmnt", None) => {}
                ("sec", Some(other)) => {
                    return Err(format!("'sec={other}' is not supported: only sec=sys is"));
                }
                _ => return Err(format!("'{word}' is not supported")),
            }
        }
        if options.clients.is_empty() {
            // As exports(5) has it: who is not said to write reads.
            options.clients.push((Client::Everyone, false));
        }
        Ok(Some(options))
    }

    /// Host names that stand in the words.
    pub fn names(&self) -> Vec<String> {
        let all = self.clients.iter().map(|(c, _)| c).chain(&self.roots);
        all.filter_map(|c| if let Client::Name(name) = c { Some(name.clone()) } else { None }).collect()
    }

    /// Puts addresses in the place of a host's name.
    pub fn resolve(&mut self, name: &str, addresses: &[IpAddr]) {
        let found = || addresses.iter().map(|ip| ip.to_canonical()).map(|ip| Client::Net(ip, bits(ip)));
        let is = |c: &Client| matches!(c, Client::Name(n) if n == name);
        for i in (0..self.clients.len()).rev().filter(|i| is(&self.clients[*i].0)).collect::<Vec<_>>() {
            let (_, writes) = self.clients.swap_remove(i);
            self.clients.extend(found().map(|c| (c, writes)));
        }
        for i in (0..self.roots.len()).rev().filter(|i| is(&self.roots[*i])).collect::<Vec<_>>() {
            self.roots.swap_remove(i);
            self.roots.extend(found());
        }
    }

    /// What a client of this address and port may; None if he is not to come in.
    pub(crate) fn admit(&self, ip: IpAddr, port: u16) -> Option<Admission> {
        let ip = ip.to_canonical();
        if self.secure && port >= 1024 {
            return None;
        }
        let close = self.clients.iter().filter_map(|(c, writes)| Some((c.names(ip)?, !writes)));
        let (_, reads_only) = close.max()?;
        Some(Admission {
            writes: !reads_only,
            root: !self.root_squash || self.roots.iter().any(|c| c.names(ip).is_some()),
            all_squash: self.all_squash,
            anon: self.anon,
        })
    }

    /// Who may come, in words, for the list of exports.
    pub(crate) fn groups(&self) -> Vec<String> {
        let word = |c: &Client| match c {
            Client::Everyone => "*".to_owned(),
            Client::Net(ip, n) if *n == bits(*ip) => ip.to_string(),
            Client::Net(ip, n) => format!("{ip}/{n}"),
            Client::Name(name) => name.clone(),
        };
        self.clients.iter().map(|(c, _)| word(c)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(text: &str) -> Options {
        Options::parse(text).unwrap().unwrap()
    }

    /// Whether a client of this address may write; None: he may not come in.
    fn writes(text: &str, ip: &str) -> Option<bool> {
        options(text).admit(ip.parse().unwrap(), 700).map(|a| a.writes)
    }

    #[test]
    fn the_closest_word_counts() {
        assert_eq!(writes("on", "9.9.9.9"), Some(true));
        assert_eq!(writes("rw=@10.0.0.0/8,ro", "10.1.2.3"), Some(true));
        assert_eq!(writes("rw=@10.0.0.0/8,ro", "11.1.2.3"), Some(false));
        assert_eq!(writes("rw=@10.0.0.0/8", "11.1.2.3"), None);
        assert_eq!(writes("ro=@10.0.0.0/8,rw=10.1.2.3:[fd00::7]", "10.1.2.3"), Some(true));
        assert_eq!(writes("ro=@10.0.0.0/8,rw=10.1.2.3:[fd00::7]", "fd00::7"), Some(true));
        assert_eq!(writes("ro=@10.0.0.0/8,rw=10.1.2.3:[fd00::7]", "fd00::8"), None);
        assert_eq!(writes("rw=@10.0.0.0/8,ro=@10.0.0.0/8", "10.0.0.1"), Some(false));
        assert_eq!(writes("rw=@10.0.0.0/8", "::ffff:10.0.0.1"), Some(true));
        assert_eq!(writes("rw=@0.0.0.0/0", "1.2.3.4"), Some(true));
        assert_eq!(writes("no_root_squash", "1.2.3.4"), Some(false), "exports(5): read-only unless said");
    }

    #[test]
    fn only_root_s_ports_unless_said() {
        let ip = "10.0.0.1".parse().unwrap();
        assert!(options("on").admit(ip, 1024).is_none());
        assert!(options("rw,insecure").admit(ip, 1024).is_some());
    }

    #[test]
    fn root_is_nobody_unless_said() {
        let root = |text: &str, ip: &str| options(text).admit(ip.parse().unwrap(), 1).unwrap().root;
        assert!(!root("on", "10.0.0.1") && root("rw,no_root_squash", "10.0.0.1"));
        assert!(root("rw,root=10.0.0.1", "10.0.0.1") && !root("rw,root=10.0.0.1", "10.0.0.2"));
        assert_eq!(options("rw,anonuid=7,anongid=8").anon, (7, 8));
    }

    #[test]
    fn unknown_words_are_refused_by_name() {
        for (text, named) in [
            ("rw,sec=krb5", "sec=krb5"),
            ("rw,fsid=0", "fsid=0"),
            ("rw,crossmnt", "crossmnt"),
            ("rw=@10.0.0.0/33", "10.0.0.0/33"),
            ("rw=@staff", "netgroups"),
            ("anonuid=x", "anonuid"),
            ("rw=a b", "a b"),
            ("", "''"),
            ("rw;ro", "rw;ro"),
            ("root", "root"),
        ] {
            let why = Options::parse(text).unwrap_err();
            assert!(why.contains(named), "{text}: {why}");
        }
        assert_eq!(Options::parse("off"), Ok(None));
    }

    #[test]
    fn names_are_nobody_until_they_are_looked_up() {
        let mut o = options("rw=nas.example:10.0.0.9,root=nas.example");
        assert_eq!(o.names(), ["nas.example", "nas.example"]);
        let ip: IpAddr = "10.0.0.1".parse().unwrap();
        assert!(o.admit(ip, 1).is_none());
        o.resolve("nas.example", &[ip]);
        assert!(o.names().is_empty());
        assert!(o.admit(ip, 1).unwrap().root);
        assert_eq!(o.groups(), ["10.0.0.9", "10.0.0.1"]);
    }

    proptest::proptest! {
        #[test]
        fn any_words_are_understood_or_refused(text in "[a-z0-9=@:,./\\[\\]*_-]{0,60}") {
            if let Ok(Some(options)) = Options::parse(&text) {
                let _ = options.admit("10.0.0.1".parse().unwrap(), 1);
                let _ = options.groups();
            }
        }
    }
}
