//! Going on with a trace whose recorder was killed.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::damage::TraceError;
use crate::directory::{Directory, DirectoryError, json_path};
use crate::document::FORMAT_VERSION;
use crate::output::OutputStream;
use crate::packet::{HEADER_BYTES, Header, HeaderFault, parse_file_name};
use crate::reader::parse_document;
use crate::record::EventTable;
use crate::tsdl::parse_uuid;
use crate::writer::{Totals, TraceWriter, WriteError, add_events_to};

/// Why nothing can be added to a trace. It is then as it was.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReopenError {
    /// There is nothing.
    #[error("{0} is not there")]
    NotFound(PathBuf),
    /// It cannot be written to.
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    /// Its description cannot be read.
    #[error(transparent)]
    Description(#[from] TraceError),
    /// Its description is one that nobody could have recorded with.
    #[error(transparent)]
    Events(#[from] WriteError),
    /// It is another one.
    #[error("{0} is the trace of another recording")]
    OtherTrace(PathBuf),
    /// Its recording has ended in the ordinary way.
    #[error("{0} was ended by its recorder")]
    Complete(PathBuf),
    /// Another version of the format.
    #[error("{path} has version {found} of the format, and only {FORMAT_VERSION} is written")]
    Version {
        /// The trace.
        path: PathBuf,
        /// Its version.
        found: u32,
    },
    /// A stream has something in it that no recorder leaves when it is killed.
    #[error("{path} is damaged at byte {offset}: {fault}")]
    Damaged {
        /// The stream's file.
        path: PathBuf,
        /// Where.
        offset: u64,
        /// What is wrong there.
        fault: HeaderFault,
    },
    /// A file cannot be read or cut.
    #[error("cannot {what} {path}: {source}")]
    File {
        /// What was tried.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

/// The end of a stream's file: what of it is whole.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct End {
    /// Bytes of whole packets.
    pub length: u64,
    /// Of the last one, as in [`Header`].
    pub ts_end: u64,
    pub seq: u64,
    pub discarded: u64,
    /// How many they are.
    pub packets: u64,
}

impl TraceWriter {
    /// Opens the trace with this UUID again, to add what its recorder, which was killed, has not
    /// written. Half a packet at the end of a stream is cut off.
    ///
    /// # Errors
    ///
    /// It is not there, is not that trace, is written by somebody, belongs to somebody else, is
    /// complete, or damaged; nothing has been changed then.
    pub fn reopen(path: &Path, uuid: &[u8; 16]) -> Result<TraceWriter, ReopenError> {
        let directory = Directory::reopen(path)?;
        let directory = directory.ok_or_else(|| ReopenError::NotFound(path.to_path_buf()))?;
        let json = json_path(path);
        let text = directory.read_json().map_err(failed("read", &json))?;
        let document = parse_document(&text, &json)?;
        if parse_uuid(&document.uuid) != Some(*uuid) {
            return Err(ReopenError::OtherTrace(path.to_path_buf()));
        }
        if document.complete {
            return Err(ReopenError::Complete(path.to_path_buf()));
        }
        if document.format_version != FORMAT_VERSION {
            return Err(ReopenError::Version {
                path: path.to_path_buf(),
                found: document.format_version,
            });
        }
        let mut table = EventTable::default();
        add_events_to(&mut table, &document.events)?;
        let mut found = Vec::new();
        for name in directory.names().map_err(failed("read", path))? {
            if let Some(stream) = name.to_str().and_then(parse_file_name) {
                let path = path.join(&name);
                let file = directory.open_stream(&name);
                let file = file.map_err(failed("open", &path))?;
                let end = end_of(&file, &path, uuid, stream)?;
                found.push((stream, path, file, end));
            }
        }
        // All is sound: now it may be changed.
        let mut totals = Totals {
            adjusted: document.adjusted_times,
            damaged_bytes: document.damaged_bytes,
            ..Totals::default()
        };
        let mut streams = BTreeMap::new();
        for (stream, path, file, end) in found {
            totals.packets += end.packets;
            totals.bytes += end.length;
            totals.lost_events = totals.lost_events.saturating_add(end.discarded);
            let output = OutputStream::resume(file, *uuid, &end);
            streams.insert(stream, output.map_err(failed("cut", &path))?);
        }
        Ok(TraceWriter {
            directory,
            uuid: *uuid,
            document,
            table,
            streams,
            totals,
        })
    }
}

fn failed(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> ReopenError {
    let path = path.to_path_buf();
    move |source| ReopenError::File { what, path, source }
}

/// Goes from packet to packet.
fn end_of(
    file: &File,
    path: &Path,
    uuid: &[u8; 16],
    (cpu, lane): (u32, u32),
) -> Result<End, ReopenError> {
    let length = file.metadata().map_err(failed("read", path))?.len();
    let mut end = End::default();
    while length - end.length >= HEADER_BYTES as u64 {
        let mut bytes = [0; HEADER_BYTES];
        file.read_exact_at(&mut bytes, end.length)
            .map_err(failed("read", path))?;
        let header = match Header::decode(&bytes, uuid) {
            Ok(header) if (header.cpu, header.lane) != (cpu, lane) => Err(HeaderFault::Stream),
            decoded => decoded,
        };
        let header = header.map_err(|fault| ReopenError::Damaged {
            path: path.to_path_buf(),
            offset: end.length,
            fault,
        })?;
        if header.packet_bytes() > length - end.length {
            break;
        }
        end = End {
            length: end.length + header.packet_bytes(),
            ts_end: header.ts_end,
            seq: header.seq,
            discarded: header.discarded,
            packets: end.packets + 1,
        };
    }
    Ok(end)
}
