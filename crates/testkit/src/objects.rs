//! Object files for tests.

use capriole_object::{Object, ObjectError, ObjectFile, Objects};
use std::io::Write;
use std::path::Path;
use std::sync::Arc;

pub fn open(path: &Path) -> ObjectFile {
    ObjectFile::open(path).unwrap()
}

/// Opens a file with this content, which has no place in a directory.
pub fn object_of(bytes: &[u8]) -> Result<ObjectFile, ObjectError> {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(bytes).unwrap();
    ObjectFile::from_file(file, Path::new("/nowhere/small"))
}

/// Returns the main program, or the only object.
pub fn main_object(objects: &Objects) -> Arc<Object> {
    let main = objects.open(objects.main_entry().unwrap()).unwrap();
    Arc::clone(&main[0])
}
