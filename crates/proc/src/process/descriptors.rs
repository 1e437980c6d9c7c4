//! File descriptors of a process, and the addresses of its sockets.

use std::collections::HashMap;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::{Process, ProcessError};

/// Address of a socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Socket {
    /// `127.0.0.1:80->127.0.0.1:40112` of TCP, `127.0.0.1:80` if it listens, `udp:127.0.0.1:53`,
    /// `unix:/run/x.sock`.
    pub name: String,
    /// The socket keeps this name: it has a peer, listens, or is a local one.
    pub is_final: bool,
}

impl Process {
    /// Returns the number and the kernel's name of each open file descriptor: a path, `socket:[INODE]`,
    /// `pipe:[INODE]`, `anon_inode:[eventpoll]` (proc_pid_fd(5)). Bytes of a path that are not UTF-8 are
    /// replaced. Only links are read, so no file system is waited for. Descriptors that are closed
    /// meanwhile are left out.
    ///
    /// # Errors
    ///
    /// [`ProcessError::NoSuchProcess`] and [`ProcessError::Unreadable`].
    pub fn descriptors(&self) -> Result<Vec<(i32, String)>, ProcessError> {
        let mut found = Vec::new();
        for entry in fs::read_dir(self.proc_path("fd")).map_err(|e| self.error("fd", e))? {
            let Some(entry) = entry.ok() else { continue };
            let number = entry.file_name().to_str().and_then(|s| s.parse().ok());
            if let (Some(number), Ok(target)) = (number, fs::read_link(entry.path())) {
                found.push((number, target.to_string_lossy().into_owned()));
            }
        }
        Ok(found)
    }

    /// Returns the sockets in the network namespace of the process that have an address, by inode.
    /// Tables that cannot be read are left out.
    #[must_use]
    pub fn sockets(&self) -> HashMap<u64, Socket> {
        let mut sockets = HashMap::new();
        for (file, prefix) in [("tcp", ""), ("tcp6", ""), ("udp", "udp:"), ("udp6", "udp:")] {
            let table = self.text_of_deputy(&format!("net/{file}"));
            let found = table.lines().skip(1).filter_map(internet);
            sockets.extend(found.map(|(inode, socket)| {
                let name = format!("{prefix}{}", socket.name);
                (inode, Socket { name, ..socket })
            }));
        }
        let table = self.text_of_deputy("net/unix");
        sockets.extend(table.lines().skip(1).filter_map(local));
        sockets
    }
}

/// State of a socket of TCP that listens, `TCP_LISTEN`; no socket of UDP is in it.
const LISTEN: &str = "0A";

/// Parses a line of `/proc/net/tcp` and the like; `None` for sockets without an inode.
fn internet(line: &str) -> Option<(u64, Socket)> {
    let mut words = line.split_ascii_whitespace();
    let (own, peer) = (address(words.nth(1)?)?, address(words.next()?)?);
    let listens = words.next()? == LISTEN;
    let inode = words.nth(5)?.parse().ok().filter(|inode| *inode != 0)?;
    let has_peer = peer.port() != 0;
    let name = match has_peer {
        false => own.to_string(),
        true => format!("{own}->{peer}"),
    };
    let is_final = has_peer || listens;
    Some((inode, Socket { name, is_final }))
}

/// Parses `0100007F:1F90`: words in the processor's byte order, of an address in network byte order.
fn address(text: &str) -> Option<SocketAddr> {
    let (address, port) = text.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let word = |at: usize| {
        let digits = address.get(at * 8..at * 8 + 8)?;
        Some(u32::from_str_radix(digits, 16).ok()?.to_ne_bytes())
    };
    let address = match address.len() {
        8 => IpAddr::from(Ipv4Addr::from(word(0)?)),
        32 => {
            let mut bytes = [0; 16];
            for (at, chunk) in bytes.chunks_exact_mut(4).enumerate() {
                chunk.copy_from_slice(&word(at)?);
            }
            IpAddr::from(Ipv6Addr::from(bytes)).to_canonical()
        }
        _ => return None,
    };
    Some(SocketAddr::new(address, port))
}

/// Parses a line of `/proc/net/unix`; `None` for sockets without a name.
fn local(line: &str) -> Option<(u64, Socket)> {
    // Six words, the inode padded with blanks on the left, and the path, which may have blanks.
    let mut rest = line;
    for _ in 0..6 {
        rest = rest.trim_start().split_once(' ')?.1;
    }
    let (inode, path) = rest.trim_start().split_once(' ')?;
    let name = format!("unix:{path}");
    let is_final = true;
    Some((inode.parse().ok()?, Socket { name, is_final }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_tables_of_sockets() {
        let tcp = "   1: 0100007F:1538 0100007F:9CB0 01 00000000:00000000 00:00000000 00000000  1000 \
                   0 48211 1 0000000000000000 20 4 30 10 -1";
        let peers = "127.0.0.1:5432->127.0.0.1:40112";
        let socket = |name: &str, is_final| {
            let name = name.to_owned();
            Socket { name, is_final }
        };
        assert_eq!(internet(tcp), Some((48211, socket(peers, true))));
        let listening = tcp.replace("0100007F:9CB0 01", "00000000:0000 0A");
        let own = "127.0.0.1:5432";
        assert_eq!(internet(&listening), Some((48211, socket(own, true))));
        let bound = tcp.replace("0100007F:9CB0 01", "00000000:0000 07");
        assert_eq!(internet(&bound), Some((48211, socket(own, false))));
        // In the state TIME_WAIT there is no inode.
        assert_eq!(internet(&tcp.replace("48211", "0")), None);
        assert_eq!(internet("sl local"), None);
        let six = "00000000000000000000000001000000:0050";
        assert_eq!(address(six).expect("parses").to_string(), "[::1]:80");
        let mapped = "0000000000000000FFFF00000100007F:0050";
        assert_eq!(address(mapped).expect("parses").to_string(), "127.0.0.1:80");
        assert_eq!(address("0100007F"), None);
        assert_eq!(address("01\u{fc}0007F:1"), None);

        let unix = "0000000000000000: 00000002 00000000 00010000 0001 01 23456 /run/a b.sock";
        assert_eq!(
            local(unix),
            Some((23456, socket("unix:/run/a b.sock", true)))
        );
        let padded = "0000000000000000: 00000002 00000000 00010000 0001 01   456 @x";
        assert_eq!(local(padded), Some((456, socket("unix:@x", true))));
        let nameless = "0000000000000000: 00000003 00000000 00000000 0001 03 23457";
        assert_eq!(local(nameless), None);
    }

    #[test]
    fn descriptors_of_this_process() {
        let own = Process::open(std::process::id()).expect("it runs");
        let path = std::env::temp_dir().canonicalize().expect("there is one");
        let directory = fs::File::open(&path).expect("it can be opened");
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let number = |fd: &dyn std::os::fd::AsRawFd| fd.as_raw_fd();
        let all: HashMap<i32, String> = own.descriptors().expect("listed").into_iter().collect();
        assert_eq!(all[&number(&directory)], path.to_string_lossy());
        let socket = &all[&number(&listener)];
        let inode = socket
            .strip_prefix("socket:[")
            .and_then(|s| s.strip_suffix("]"));
        let inode: u64 = inode.expect("a socket").parse().expect("a number");
        let address = listener.local_addr().expect("bound").to_string();
        let sockets = own.sockets();
        assert_eq!(sockets[&inode].name, address);
    }
}
