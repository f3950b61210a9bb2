//! The folder in which a server or a stack keeps its data and logs.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use tempfile::TempDir;

use crate::{Result, StackError};

/// Others may pass through: Postgres runs as a user of its own when we are root.
const MODE: u32 = 0o755;

/// Given by the caller and kept, or made for the occasion and removed with it.
#[derive(Debug)]
pub(crate) enum Folder {
    Kept(PathBuf),
    Temporary(TempDir),
}

impl Folder {
    /// The folder `given`, made if it is missing; else a new temporary one.
    pub(crate) fn open(given: Option<&Path>) -> Result<Folder> {
        let folder = match given {
            Some(path) => {
                make(path)?;
                let absolute = path.canonicalize().map_err(StackError::system(format!("resolve {}", path.display())))?;
                Folder::Kept(absolute)
            }
            None => {
                let made = tempfile::Builder::new().prefix("doorbuster-").tempdir();
                Folder::Temporary(made.map_err(StackError::system("make a temporary folder"))?)
            }
        };
        let mode = fs::Permissions::from_mode(MODE);
        fs::set_permissions(folder.path(), mode)
            .map_err(StackError::system(format!("change the mode of {}", folder.path().display())))?;
        Ok(folder)
    }

    pub(crate) fn path(&self) -> &Path {
        match self {
            Folder::Kept(path) => path,
            Folder::Temporary(folder) => folder.path(),
        }
    }

    /// Whether what is in it is wanted later.
    pub(crate) fn is_kept(&self) -> bool {
        matches!(self, Folder::Kept(_))
    }
}

/// Makes a folder and those above it; an existing one is fine.
pub(crate) fn make(path: &Path) -> Result<()> {
    fs::create_dir_all(path).map_err(StackError::system(format!("make the folder {}", path.display())))
}

/// Writes a file whole.
pub(crate) fn write(path: &Path, content: impl AsRef<[u8]>) -> Result<()> {
    fs::write(path, content).map_err(StackError::system(format!("write {}", path.display())))
}
