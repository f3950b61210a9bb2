//! `schemas/history`: every version ever published, with golden bytes.

use std::path::PathBuf;

/// One published version of a topic's schema.
pub(crate) struct Version {
    pub(crate) name: String,
    pub(crate) schema: String,
    /// The datum of each sample, by the sample's name.
    pub(crate) golden: Vec<(String, Vec<u8>)>,
}

/// The versions of `topic`, oldest first.
pub(crate) fn history(topic: &str) -> Vec<Version> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../schemas/history").join(topic);
    let mut versions = Vec::new();
    while let Ok(schema) = std::fs::read_to_string(folder.join(format!("v{}.avsc", versions.len() + 1))) {
        let name = format!("{topic} v{}", versions.len() + 1);
        let golden = std::fs::read_to_string(folder.join(format!("v{}.golden", versions.len() + 1)))
            .unwrap_or_else(|e| panic!("{name} has no golden bytes: {e}"));
        let golden = golden.lines().map(|line| parse(line).unwrap_or_else(|| panic!("{name}: {line:?}"))).collect();
        versions.push(Version { name, schema, golden });
    }
    let files = std::fs::read_dir(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display())).count();
    assert_eq!(files, 2 * versions.len(), "{}: a version is missing, or a file is none", folder.display());
    versions
}

/// A line of a golden file: the sample's name and its datum in hexadecimal.
pub(crate) fn line(name: &str, datum: &[u8]) -> String {
    let hex: String = datum.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{name} {hex}")
}

fn parse(line: &str) -> Option<(String, Vec<u8>)> {
    let (name, hex) = line.split_once(' ')?;
    let byte = |at| u8::from_str_radix(hex.get(at..at + 2)?, 16).ok();
    Some((name.to_owned(), (0..hex.len()).step_by(2).map(byte).collect::<Option<_>>()?))
}
