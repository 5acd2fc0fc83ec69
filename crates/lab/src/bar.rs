//! Bars: figures with a bound that was set before they were measured.

use crate::case::Case;

/// A figure with its bound.
#[derive(Clone, Debug, PartialEq)]
pub struct Bar {
    /// Its case.
    pub case: Case,
    /// Its name.
    pub figure: &'static str,
    /// The bound; `None`: the figure is for information.
    pub most: Option<f64>,
    /// The measured figure; `None`: it was not measured.
    pub found: Option<f64>,
}

impl Bar {
    /// Whether the bound is kept; `None`: unknown.
    pub fn is_kept(&self) -> Option<bool> {
        Some(self.found? <= self.most?)
    }
}
