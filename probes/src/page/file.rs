//! The file of a call's page.

use std::fs::File;
use std::io::{self, Seek as _, Write as _};
use std::path::{Path, PathBuf};

use super::call::{self, About};
use crate::call::Outcome;
use crate::output::{self, OutputError};

/// A page to come.
#[derive(Debug)]
pub struct PageFile {
    file: File,
    path: PathBuf,
    about: About,
}

impl PageFile {
    /// Creates the file, for its owner alone. It must be none of `others`.
    ///
    /// # Errors
    /// When it cannot be had.
    pub fn create(path: &Path, others: &[&Path], about: About) -> Result<Self, OutputError> {
        Ok(Self { file: output::create(path, others)?, path: path.to_owned(), about })
    }

    /// The call begins: until the page is written, a file says so.
    ///
    /// # Errors
    /// When the disk does not take it.
    pub fn begin(mut self) -> Result<Self, OutputError> {
        // What went to a device stays there.
        if self.file.metadata().is_ok_and(|file| file.is_file()) {
            self.put(&call::unfinished(&self.about))?;
        }
        Ok(self)
    }

    /// Writes the page about the call, however it came out.
    ///
    /// # Errors
    /// When the disk does not take it.
    pub fn write(mut self, outcome: &Outcome) -> Result<(), OutputError> {
        self.put(&call::html(outcome, &self.about))
    }

    fn put(&mut self, html: &str) -> Result<(), OutputError> {
        self.replace(html).map_err(|error| OutputError::Write(self.path.clone(), error))
    }

    fn replace(&mut self, html: &str) -> io::Result<()> {
        if self.file.metadata()?.is_file() {
            self.file.set_len(0)?;
            self.file.seek(io::SeekFrom::Start(0))?;
        }
        self.file.write_all(html.as_bytes())
    }
}
