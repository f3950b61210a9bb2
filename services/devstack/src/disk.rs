//! A disk of bounded size, in memory (tmpfs), that can be made full and be given its space again.

use std::{
    io,
    path::{Path, PathBuf},
};

use nix::{
    mount::{MntFlags, MsFlags, mount, umount2},
    sys::statvfs::statvfs,
};

use crate::{
    Result, StackError,
    folder::{self, Folder},
};

/// Where it is mounted in its folder.
const MOUNT: &str = "disk";
/// It may have grown between the look at what it holds and the change of its size.
const TRIES: u32 = 100;

/// A mounted disk; unmounted when dropped. One that a killed process left behind is unmounted when the next temporary folder is made.
#[derive(Debug)]
pub struct Disk {
    path: PathBuf,
    bytes: u64,
    _folder: Folder,
}

impl Disk {
    /// Mounts an empty one of at most so many bytes; takes memory only for what it holds.
    ///
    /// # Errors
    /// Where this process may not mount anything (only root may).
    pub fn new(bytes: u64) -> Result<Disk> {
        let folder = Folder::open(None)?;
        let path = folder.path().join(MOUNT);
        folder::make(&path)?;
        mounted(&path, bytes, MsFlags::empty()).map_err(StackError::system("mount a tmpfs (root may)"))?;
        Ok(Disk { path, bytes, _folder: folder })
    }

    /// A folder on it that everybody may pass through.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Bytes that are taken.
    ///
    /// # Errors
    /// When the system does not tell.
    pub fn used(&self) -> Result<u64> {
        let found = statvfs(&self.path).map_err(io::Error::from);
        let found = found.map_err(StackError::system(format!("ask how full {} is", self.path.display())))?;
        Ok(found.blocks().saturating_sub(found.blocks_free()) * found.fragment_size())
    }

    /// Leaves no space: until [`Disk::free`] it is as large as what it holds. What is deleted can be written again.
    ///
    /// # Errors
    /// When it grows too quickly for that.
    pub fn fill(&self) -> Result<()> {
        let shrink = || Ok::<_, StackError>(mounted(&self.path, self.used()?, MsFlags::MS_REMOUNT));
        let mut done = shrink()?;
        for _ in 1..TRIES {
            if done.is_ok() {
                break;
            }
            done = shrink()?;
        }
        done.map_err(StackError::system(format!("leave no space on {}", self.path.display())))
    }

    /// Gives it its first size again. Nothing happens where it has that.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn free(&self) -> Result<()> {
        mounted(&self.path, self.bytes, MsFlags::MS_REMOUNT)
            .map_err(StackError::system(format!("give {} its space again", self.path.display())))
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        unmount(&self.path);
    }
}

fn mounted(path: &Path, bytes: u64, flags: MsFlags) -> io::Result<()> {
    let options = format!("size={bytes},mode=755");
    Ok(mount(Some("doorbuster"), path, Some("tmpfs"), flags, Some(options.as_str()))?)
}

/// Takes the disk away that a temporary folder may have; whoever has files open on it keeps them until he ends.
pub(crate) fn unmount_below(folder: &Path) {
    unmount(&folder.join(MOUNT));
}

fn unmount(path: &Path) {
    // Nothing is mounted there, or not by us: either way nothing to do.
    let _ = umount2(path, MntFlags::MNT_DETACH | MntFlags::UMOUNT_NOFOLLOW);
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::ProcessId;

    const SIZE: u64 = 1 << 20;

    /// `None`, said aloud, where nothing may be mounted.
    fn disk() -> Option<Disk> {
        Disk::new(SIZE).inspect_err(|error| println!("left out: {error}")).ok()
    }

    #[test]
    fn a_full_disk_takes_nothing_until_it_has_its_space_again() {
        let Some(disk) = disk() else { return };
        let file = |name: &str| disk.path().join(name);
        fs::write(file("before"), [1; 10_000]).unwrap();
        disk.fill().unwrap();
        let refused = fs::write(file("more"), [1; 10_000]).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::StorageFull);
        assert_eq!(fs::read(file("before")).unwrap(), [1; 10_000]);
        disk.free().unwrap();
        fs::write(file("more"), [1; 10_000]).unwrap();
        let refused = fs::write(file("all"), vec![1; SIZE as usize]).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::StorageFull, "it is no larger than it was made");
        let path = disk.path().to_owned();
        drop(disk);
        assert!(!path.exists());
    }

    #[test]
    fn the_disk_of_a_process_that_was_killed_goes_with_its_folder() {
        let Some(disk) = disk() else { return };
        fs::write(disk.path().join("file"), "content").unwrap();
        let folder = disk.path().parent().unwrap().to_owned();
        // As a killed process leaves it: nothing is dropped, and the owner is gone.
        std::mem::forget(disk);
        let own = ProcessId::own().unwrap();
        ProcessId { started: own.started + 1, ..own }.write_to(&folder.join("owner.pid")).unwrap();
        drop(Folder::open(None).unwrap());
        assert!(!folder.exists());
    }
}
