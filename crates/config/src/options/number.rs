//! Options that are whole numbers with a unit.

use super::OptionKind;
use super::values::Values;

/// The unit, range and field of a numeric option. The option's name ends in its unit.
pub struct NumberKind {
    /// The unit.
    pub(crate) unit: Unit,
    /// The smallest value, except 0 where `zero` allows it.
    pub(crate) min: u64,
    /// The largest value.
    pub(crate) max: u64,
    /// The meaning of 0, if 0 is allowed and is below `min`.
    pub(crate) zero: Option<&'static str>,
    /// The field of [`Values`] that holds it.
    pub(crate) field: NumberField,
}

/// A field of [`Values`] that holds a number.
pub enum NumberField {
    /// A field of 32 bits.
    U32(fn(&mut Values) -> &mut u32),
    /// A field of 64 bits.
    U64(fn(&mut Values) -> &mut u64),
}

/// The unit of a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    /// A number of items.
    Count,
    /// Bytes.
    Bytes,
    /// Milliseconds.
    Milliseconds,
    /// Microseconds.
    Microseconds,
}

/// The longest deadline: one day.
pub(super) const DAY_MS: u64 = 24 * 60 * 60 * 1_000;

/// A number of 32 bits from `min` to `max`.
pub(super) const fn number(
    unit: Unit,
    min: u64,
    max: u64,
    field: fn(&mut Values) -> &mut u32,
) -> OptionKind {
    OptionKind::Number(NumberKind {
        unit,
        min,
        max,
        zero: None,
        field: NumberField::U32(field),
    })
}

/// The same, where 0 has a meaning of its own.
pub(super) const fn number_or_zero(
    unit: Unit,
    (min, max): (u64, u64),
    zero: &'static str,
    field: fn(&mut Values) -> &mut u32,
) -> OptionKind {
    OptionKind::Number(NumberKind {
        unit,
        min,
        max,
        zero: Some(zero),
        field: NumberField::U32(field),
    })
}

impl NumberKind {
    /// The number that `values` hold.
    pub(super) fn get(&self, values: &mut Values) -> u64 {
        match self.field {
            NumberField::U32(field) => u64::from(*field(values)),
            NumberField::U64(field) => *field(values),
        }
    }

    /// Parses digits with or without a suffix, and checks the range.
    pub(super) fn parse(&self, text: &str) -> Result<u64, String> {
        let digits = text.bytes().take_while(u8::is_ascii_digit).count();
        let (digits, suffix) = text.split_at(digits);
        let wrong = || format!("must be a whole number {}", self.unit.how_to_write());
        if digits.is_empty() {
            return Err(wrong());
        }
        let scale = if suffix.is_empty() {
            self.unit.size()
        } else {
            let known = self
                .unit
                .suffixes()
                .iter()
                .find(|(name, _)| *name == suffix.trim_start());
            known.ok_or_else(wrong)?.1
        };
        // A number that overflows is above every maximum.
        let amount = digits
            .parse::<u128>()
            .ok()
            .and_then(|count| count.checked_mul(scale));
        let amount = amount.unwrap_or(u128::MAX);
        if !amount.is_multiple_of(self.unit.size()) && amount != u128::MAX {
            return Err(format!("is not a whole number of {}", self.unit.plural()));
        }
        match u64::try_from(amount / self.unit.size()) {
            Ok(value) if (self.min..=self.max).contains(&value) => Ok(value),
            Ok(0) if self.zero.is_some() => Ok(0),
            _ => Err(format!("must be {}", self.range())),
        }
    }

    /// The allowed values, in words.
    pub fn range(&self) -> String {
        let range = format!(
            "from {} to {}",
            self.describe(self.min),
            self.describe(self.max)
        );
        match self.zero {
            Some(meaning) => format!("{range}, or 0 ({meaning})"),
            None => range,
        }
    }

    /// A value with its largest whole unit: `1048576 (1MiB)`.
    pub(crate) fn describe(&self, value: u64) -> String {
        if value == 0 {
            return self
                .zero
                .map_or("0".into(), |meaning| format!("0 ({meaning})"));
        }
        let amount = u128::from(value) * self.unit.size();
        let largest = self
            .unit
            .suffixes()
            .iter()
            .rev()
            .find(|(_, size)| amount.is_multiple_of(*size));
        match largest {
            Some((suffix, size)) if *size > self.unit.size() => {
                format!("{value} ({}{suffix})", amount / size)
            }
            _ => value.to_string(),
        }
    }
}

impl Unit {
    /// One unit in bytes, in microseconds, or in items.
    fn size(self) -> u128 {
        match self {
            Unit::Count | Unit::Bytes | Unit::Microseconds => 1,
            Unit::Milliseconds => 1_000,
        }
    }

    /// The suffixes that a number may have, each with its size as in [`Unit::size`].
    fn suffixes(self) -> &'static [(&'static str, u128)] {
        match self {
            Unit::Count => &[],
            Unit::Bytes => &[
                ("KiB", 1 << 10),
                ("MiB", 1 << 20),
                ("GiB", 1 << 30),
                ("TiB", 1 << 40),
            ],
            Unit::Milliseconds | Unit::Microseconds => &[
                ("us", 1),
                ("ms", 1_000),
                ("s", 1_000_000),
                ("min", 60_000_000),
                ("h", 3_600_000_000),
            ],
        }
    }

    fn plural(self) -> &'static str {
        match self {
            Unit::Count => "things",
            Unit::Bytes => "bytes",
            Unit::Milliseconds => "milliseconds",
            Unit::Microseconds => "microseconds",
        }
    }

    fn how_to_write(self) -> &'static str {
        match self {
            Unit::Count => "without a unit, such as 100",
            Unit::Bytes => "of bytes, such as 1048576 or 1MiB",
            Unit::Milliseconds => "of milliseconds, such as 1500 or 2s",
            Unit::Microseconds => "of microseconds, such as 200 or 1ms",
        }
    }
}
