//! Continues a trace whose recorder was killed.

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
use crate::totals::{End, Totals};
use crate::tsdl::parse_uuid;
use crate::writer::{TraceWriter, WriteError, add_events_to};

/// Reason why nothing can be added to a trace. The trace is then unchanged.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReopenError {
    /// The trace does not exist.
    #[error("{0} does not exist")]
    NotFound(PathBuf),
    /// The directory cannot be written to.
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    /// The description cannot be read.
    #[error(transparent)]
    Description(#[from] TraceError),
    /// The description has events that cannot be recorded.
    #[error(transparent)]
    Events(#[from] WriteError),
    /// It is the trace of another recording.
    #[error("{0} is the trace of another recording")]
    OtherTrace(PathBuf),
    /// The recording has ended normally.
    #[error("{0} is complete: its recorder has ended it")]
    Complete(PathBuf),
    /// The trace has a different version of the format.
    #[error("{path} has version {found} of the format, and only {FORMAT_VERSION} is written")]
    Version {
        /// The trace.
        path: PathBuf,
        /// Its version.
        found: u32,
    },
    /// A stream has damage that a killed recorder does not leave.
    #[error("{path} is damaged at byte {offset}: {fault}")]
    Damaged {
        /// The stream's file.
        path: PathBuf,
        /// Bytes from its start.
        offset: u64,
        /// The fault found there.
        fault: HeaderFault,
    },
    /// A file cannot be read or truncated.
    #[error("cannot {what} {path}: {source}")]
    File {
        /// The attempted operation.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

impl TraceWriter {
    /// Reopens the trace with this UUID, to add the records that its killed recorder did not write.
    /// An incomplete packet at the end of a stream is cut off.
    ///
    /// # Errors
    ///
    /// The trace does not exist, has another UUID, is being written, belongs to another user, is
    /// complete, or damaged; nothing is changed in these cases.
    pub fn reopen(path: &Path, uuid: &[u8; 16]) -> Result<TraceWriter, ReopenError> {
        let there = Directory::reopen(path).map_err(ReopenError::from);
        let there = there.and_then(|directory| TraceWriter::resume(directory, path, uuid));
        there.or_else(|error| {
            // The recorder may have been killed just before it put its trace in place.
            let pending = Directory::reopen_pending(path).map_err(ReopenError::from);
            let resume = |directory| TraceWriter::resume(directory, path, uuid);
            let Ok(mut writer) = pending.and_then(resume) else {
                return Err(error);
            };
            writer.begin()?;
            Ok(writer)
        })
    }

    /// Continues the trace in an open directory.
    fn resume(
        directory: Option<Directory>,
        path: &Path,
        uuid: &[u8; 16],
    ) -> Result<TraceWriter, ReopenError> {
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
        // All is valid: changes start here.
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
            names: None,
            totals,
        })
    }
}

fn failed(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> ReopenError {
    let path = path.to_path_buf();
    move |source| ReopenError::File { what, path, source }
}

/// Walks from packet to packet to find the end of the last complete one.
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
