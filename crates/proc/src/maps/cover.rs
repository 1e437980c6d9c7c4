//! Text of a program that private memory covers while it is probed.
//!
//! The mapping of a file that is covered stands aside at other addresses. The memory in its place comes
//! from a memfd whose name tells where:
//!
//! ```text
//!  5500001000  r-xp  prog          ──▶  5500001000  r-xp  prog
//!                                       5500002000  r-xp  /memfd:capriole-text-7f0000000000-3000, offset 1000
//!                                       5500003000  r-xp  prog
//!                                       7f0000000000  ---p  the memfd, offset 0
//!                                       7f0000001000  r-xp  prog, the page of 5500002000
//! ```
//!
//! Behind that range is the [place](Aside::spare) from which covers are moved to theirs.
//!
//! So the list of mappings alone says what belongs where, in a forked child and after the death of the
//! tracer as well.

use super::{Mapping, PAGE_SIZE, Perms, containing};
use std::ops::Range;

/// Start of the name of a memfd from which covers are mapped.
pub const COVER_NAME: &str = "capriole-text-";

/// Range of addresses where covered mappings stand aside.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Aside(pub Range<u64>);

impl Aside {
    /// Returns the name of the memfd.
    #[must_use]
    pub fn name(&self) -> String {
        let Range { start, end } = self.0;
        format!("{COVER_NAME}{start:x}-{:x}", end - start)
    }

    /// Returns the range behind it where covers are mapped before they take their places.
    #[must_use]
    pub fn spare(&self) -> Range<u64> {
        let Range { start, end } = self.0;
        end..end.saturating_add((end - start).saturating_sub(PAGE_SIZE))
    }

    /// Returns the range that a mapping of such a memfd names; `None` for any other mapping.
    #[must_use]
    pub fn of(mapping: &Mapping) -> Option<Aside> {
        let path = mapping.path.to_str()?;
        let (start, len) = path
            .strip_prefix("/memfd:")?
            .strip_prefix(COVER_NAME)?
            .split_once('-')?;
        let number = |digits| u64::from_str_radix(digits, 16).ok();
        let (start, len) = (number(start)?, number(len)?);
        let aside = Aside(start..start.checked_add(len)?);
        (aside.name() == path["/memfd:".len()..]).then_some(aside)
    }
}

/// A mapping that covers others, in the place of these.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cover {
    /// The mapping.
    pub mapping: Mapping,
    /// The range where what it covers stands aside.
    pub aside: Aside,
    /// The part of that range that belongs here.
    pub covered: Range<u64>,
}

/// Returns the covers among the mappings of a process, as the kernel lists them.
pub fn covers(maps: &[Mapping]) -> impl Iterator<Item = Cover> {
    maps.iter().filter_map(Cover::of)
}

/// True if a page is covered, by the mappings of its process as the kernel lists them.
#[must_use]
pub fn is_covered(maps: &[Mapping], page: u64) -> bool {
    containing(maps, page).and_then(Cover::of).is_some()
}

/// Returns the ranges where covered mappings of a process stand aside, or are going to.
#[must_use]
pub fn asides(maps: &[Mapping]) -> Vec<Aside> {
    let mut asides: Vec<Aside> = Vec::new();
    for mapping in maps {
        asides.extend(Aside::of(mapping).filter(|aside| !asides.contains(aside)));
    }
    asides
}

impl Cover {
    /// Returns the cover that a mapping is; `None` for any other mapping.
    fn of(mapping: &Mapping) -> Option<Cover> {
        let aside = Aside::of(mapping)?;
        let start = aside.0.start.checked_add(mapping.offset)?;
        let covered = start..start.checked_add(mapping.end - mapping.start)?;
        // What keeps the range, and what has not taken its place, cover nothing.
        let own = aside.0.start..aside.spare().end;
        let is_cover = !own.contains(&mapping.start) && covered.end <= aside.0.end;
        is_cover.then(|| Cover {
            mapping: mapping.clone(),
            aside,
            covered,
        })
    }

    /// Returns the parts of files that stand aside for it, at the addresses where they belong, with
    /// the protection that is there now. Empty if not all of it is there.
    #[must_use]
    pub fn belongs(&self, maps: &[Mapping]) -> Vec<Mapping> {
        let mut parts = Vec::new();
        let mut at = self.covered.start;
        let first = maps.partition_point(|m| m.end <= at);
        for mapping in &maps[first..] {
            let is_part = mapping.is_file()
                && !mapping.perms.shared
                && mapping.contains(at)
                && Aside::of(mapping).is_none();
            if !is_part {
                return Vec::new();
            }
            let end = mapping.end.min(self.covered.end);
            let place = |address: u64| self.mapping.start + (address - self.covered.start);
            parts.push(Mapping {
                start: place(at),
                end: place(end),
                perms: self.mapping.perms,
                offset: mapping.offset + (at - mapping.start),
                ..mapping.clone()
            });
            at = end;
            if at == self.covered.end {
                return parts;
            }
        }
        Vec::new()
    }
}

/// Returns the mappings as the program has made them: each file where it belongs, and nothing of it
/// where it stands aside.
#[must_use]
pub fn as_made(maps: Vec<Mapping>) -> Vec<Mapping> {
    let covers: Vec<(Cover, Vec<Mapping>)> = covers(&maps)
        .map(|cover| {
            let parts = cover.belongs(&maps);
            (cover, parts)
        })
        .filter(|(_, parts)| !parts.is_empty())
        .collect();
    let keepers: Vec<(Aside, Mapping)> = maps
        .iter()
        .filter_map(|m| Some((Aside::of(m)?, m.clone())))
        .filter(|(aside, m)| aside.0.start == m.start)
        .collect();
    if covers.is_empty() && keepers.is_empty() {
        return maps;
    }
    let mut made: Vec<Mapping> = Vec::new();
    // True if the last one may be a part of a mapping that a cover has split.
    let mut was_split = false;
    for mapping in maps {
        let cover = covers
            .binary_search_by_key(&mapping.start, |(cover, _)| cover.mapping.start)
            .ok();
        let stands_aside =
            |aside: &Aside| aside.0.start <= mapping.start && mapping.end <= aside.0.end;
        let is_spare = |aside: &Aside| {
            aside.spare().contains(&mapping.start) && Aside::of(&mapping).as_ref() == Some(aside)
        };
        let keeper = keepers
            .iter()
            .find(|(aside, _)| stands_aside(aside) || is_spare(aside));
        let (parts, is_split) = match (cover, keeper) {
            (Some(index), _) => (covers[index].1.clone(), true),
            // Nothing for anybody to look at.
            (None, Some((aside, keeper))) => {
                let hidden = Mapping {
                    start: mapping.start,
                    end: mapping.end,
                    perms: Perms::default(),
                    offset: mapping.start - aside.0.start,
                    ..keeper.clone()
                };
                (vec![hidden], true)
            }
            (None, None) => (vec![mapping], false),
        };
        for part in parts {
            match made.last_mut() {
                Some(last) if (was_split || is_split) && continues(last, &part) => {
                    last.end = part.end;
                }
                _ => made.push(part),
            }
            was_split = is_split;
        }
    }
    made
}

/// True if a mapping continues another one.
fn continues(one: &Mapping, next: &Mapping) -> bool {
    one.end == next.start
        && one.perms == next.perms
        && (one.dev, one.inode, one.deleted) == (next.dev, next.inode, next.deleted)
        && one.offset + (one.end - one.start) == next.offset
        && one.path == next.path
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::maps::parse_maps;
    use proptest::prelude::*;

    const MADE: &str = "\
00001000-00009000 r-xp 00001000 fe:01 5 /bin/prog
00009000-0000a000 rw-p 00009000 fe:01 5 /bin/prog
00010000-00014000 r-xp 00000000 fe:01 6 /lib/lib (deleted)
";

    /// `MADE`, with the pages at 2000, 5000 and 6000 of the program and all of the library covered.
    const COVERED: &str = "\
00001000-00002000 r-xp 00001000 fe:01 5 /bin/prog
00002000-00003000 r-xp 00001000 00:01 9 /memfd:capriole-text-100000-8000 (deleted)
00003000-00005000 r-xp 00003000 fe:01 5 /bin/prog
00005000-00007000 r-xp 00002000 00:01 9 /memfd:capriole-text-100000-8000 (deleted)
00007000-00009000 r-xp 00007000 fe:01 5 /bin/prog
00009000-0000a000 rw-p 00009000 fe:01 5 /bin/prog
00010000-00014000 r-xp 00004000 00:01 9 /memfd:capriole-text-100000-8000 (deleted)
00100000-00101000 ---p 00000000 00:01 9 /memfd:capriole-text-100000-8000 (deleted)
00101000-00102000 r-xp 00002000 fe:01 5 /bin/prog
00102000-00104000 r-xp 00005000 fe:01 5 /bin/prog
00104000-00108000 r-xp 00000000 fe:01 6 /lib/lib (deleted)
00108000-0010f000 r-xp 00001000 00:01 9 /memfd:capriole-text-100000-8000 (deleted)
";

    fn maps(text: &str) -> Vec<Mapping> {
        parse_maps(text.as_bytes()).expect("well formed")
    }

    #[test]
    fn files_are_where_they_belong() {
        let made = as_made(maps(COVERED));
        assert_eq!(made[..3], maps(MADE));
        let [hidden] = &made[3..] else {
            panic!("{made:?}");
        };
        assert_eq!((hidden.start, hidden.end), (0x10_0000, 0x10_f000));
        assert!(!hidden.perms.execute && hidden.offset == 0);
    }

    #[test]
    fn what_no_longer_stands_aside_is_not_made_up() {
        let kept = |without: &str| {
            let text: Vec<&str> = COVERED.lines().filter(|l| !l.contains(without)).collect();
            as_made(maps(&(text.join("\n") + "\n")))
        };
        // Without the covers, all that stands aside is hidden still.
        let text: Vec<&str> = COVERED.lines().skip(7).collect();
        let made = as_made(maps(&(text.join("\n") + "\n")));
        assert_eq!(made.len(), 1, "{made:?}");
        // One of the covers has nothing behind it any more: it is shown as it is.
        let made = kept("00102000-");
        let cover = made.iter().find(|m| m.start == 0x5000).expect("it is");
        assert!(Aside::of(cover).is_some());
        assert_eq!(made.iter().filter(|m| m.path == "/lib/lib").count(), 1);
    }

    #[test]
    fn protection_is_what_the_program_has_now() {
        let changed = COVERED.replace("00002000-00003000 r-xp", "00002000-00003000 rwxp");
        let made = as_made(maps(&changed));
        let page = made.iter().find(|m| m.start == 0x2000).expect("one");
        assert!(page.perms.write && page.inode == 5 && page.offset == 0x2000);
    }

    #[test]
    fn only_exact_names_count() {
        let named = |path: &str| {
            Aside::of(&Mapping {
                path: path.into(),
                ..Mapping::default()
            })
        };
        let aside = Aside(0x10_0000..0x10_8000);
        assert_eq!(named(&format!("/memfd:{}", aside.name())), Some(aside));
        for path in [
            "/memfd:capriole-text-0100000-8000",
            "/memfd:capriole-text-100000",
            "/memfd:capriole-text-+1-2",
            "/memfd:capriole-text-ffffffffffffffff-2",
            "/memfd:capriole",
            "capriole-text-100000-8000",
        ] {
            assert_eq!(named(path), None, "{path}");
        }
    }

    proptest! {
        #[test]
        fn a_hostile_list_stays_a_list(
            lines in proptest::collection::vec(
                (1u64..64, 1u64..8, any::<bool>(), 0u64..64, 0u64..64, 0u64..64), 0..20),
        ) {
            let mut at = 0;
            let text: String = lines.iter().map(|(gap, len, is_cover, offset, start, size)| {
                let from = at + gap * 4096;
                at = from + len * 4096;
                let path = match is_cover {
                    true => format!("/memfd:capriole-text-{:x}-{:x}", start * 4096, size * 4096),
                    false => "/bin/prog".to_owned(),
                };
                format!("{from:x}-{at:x} r-xp {:x} 0:1 7 {path}\n", offset * 4096)
            }).collect();
            let made = as_made(maps(&text));
            prop_assert!(made.windows(2).all(|w| w[0].end <= w[1].start));
            let size = |maps: &[Mapping]| maps.iter().map(|m| m.end - m.start).sum::<u64>();
            prop_assert_eq!(size(&made), size(&maps(&text)));
        }
    }
}
