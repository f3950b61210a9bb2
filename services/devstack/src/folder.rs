//! The folder in which a server or a stack keeps its data and logs.

use std::{
    env, fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use tempfile::TempDir;

use crate::{ProcessId, Result, StackError, disk};

/// Others may pass through: Postgres runs as a user of its own when we are root.
const MODE: u32 = 0o755;

/// The names of temporary folders begin so.
const PREFIX: &str = "doorbuster-";
/// A file in a temporary folder: the process that will remove it.
const OWNER: &str = "owner.pid";

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
                remove_orphans();
                let made = tempfile::Builder::new().prefix(PREFIX).tempdir();
                let made = made.map_err(StackError::system("make a temporary folder"))?;
                if let Some(own) = ProcessId::own() {
                    own.write_to(&made.path().join(OWNER)).map_err(StackError::system("write a pid file"))?;
                }
                Folder::Temporary(made)
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

/// Removes what killed processes left behind: one folder can hold hundreds of MB. The servers in it died with its owner.
fn remove_orphans() {
    for entry in fs::read_dir(env::temp_dir()).into_iter().flatten().flatten() {
        let path = entry.path();
        let ours = entry.file_name().to_str().is_some_and(|name| name.starts_with(PREFIX));
        if ours && ProcessId::read_from(&path.join(OWNER)).is_some_and(|owner| !owner.is_alive()) {
            disk::unmount_below(&path);
            // Somebody else's, or being removed by another process just now: either way not ours to do.
            let _ = fs::remove_dir_all(&path);
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_folders_whose_owner_is_gone_are_removed() {
        let made = || tempfile::Builder::new().prefix(PREFIX).tempdir().unwrap().keep();
        let (orphan, owned, unknown) = (made(), made(), made());
        let own = ProcessId::own().unwrap();
        ProcessId { started: own.started + 1, ..own }.write_to(&orphan.join(OWNER)).unwrap();
        own.write_to(&owned.join(OWNER)).unwrap();
        remove_orphans();
        assert!(!orphan.exists() && owned.exists() && unknown.exists());
        fs::remove_dir_all(owned).unwrap();
        fs::remove_dir_all(unknown).unwrap();
    }
}
