//! The format of figures in tables and charts.

/// A whole number with separated thousands: `1,234,567`.
pub fn count(figure: f64) -> String {
    let digits = format!("{:.0}", figure.abs());
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    if figure < 0.0 && digits != "0" {
        format!("-{text}")
    } else {
        text
    }
}

/// A large number in three or four digits: `125 k`, `1.71 M`.
pub fn short(figure: f64) -> String {
    let (scaled, unit) = match figure.abs() {
        size if size >= 999.5e3 => (figure / 1e6, " M"),
        size if size >= 1e3 => (figure / 1e3, " k"),
        _ => (figure, ""),
    };
    let digits = match scaled.abs() {
        size if size >= 99.95 => 0,
        size if size >= 9.995 => 1,
        _ => 2,
    };
    let text = format!("{scaled:.digits$}");
    let text = if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.')
    } else {
        &text
    };
    format!("{text}{unit}")
}

/// About three digits for any magnitude: CPU per request ranges from 0.18 to 12.4.
pub fn fine(figure: f64) -> String {
    match figure.abs() {
        size if size >= 999.5 => count(figure),
        size if size >= 99.95 => format!("{figure:.0}"),
        size if size >= 9.995 => format!("{figure:.1}"),
        _ => format!("{figure:.2}"),
    }
}

/// Microseconds as a time with its unit: `23 µs`, `1.42 ms`, `2.1 s`.
pub fn time(us: f64) -> String {
    match us {
        us if us >= 999_500.0 => format!("{} s", short(us / 1e6)),
        us if us >= 999.5 => format!("{} ms", short(us / 1e3)),
        us => format!("{} µs", short(us)),
    }
}

/// A share in percent.
pub fn percent(part: f64) -> String {
    format!("{:.0} %", part * 100.0)
}

/// The figure at this fraction of sorted figures: the nearest one. NaN if there is none.
pub fn quantile(sorted: &[f64], fraction: f64) -> f64 {
    let last = sorted.len().saturating_sub(1);
    let at = (last as f64 * fraction).round() as usize;
    sorted.get(at).copied().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantile_is_the_nearest_figure() {
        let figures = [1.0, 2.0, 3.0, 4.0, 9.0];
        for (fraction, figure) in [(0.0, 1.0), (0.5, 3.0), (0.6, 3.0), (0.7, 4.0), (1.0, 9.0)] {
            assert_eq!(quantile(&figures, fraction), figure, "{fraction}");
        }
        assert!(quantile(&[], 0.5).is_nan());
    }

    #[test]
    fn figures_are_written_as_a_reader_expects() {
        assert_eq!(count(0.0), "0");
        assert_eq!(count(999.6), "1,000");
        assert_eq!(count(1_234_567.2), "1,234,567");
        assert_eq!(count(-1234.0), "-1,234");
        assert_eq!(short(999_900.0), "1 M");
        assert_eq!(short(125_303.0), "125 k");
        assert_eq!(short(1_708_000.0), "1.71 M");
        assert_eq!(short(0.25), "0.25");
        assert_eq!(short(100.0), "100");
        assert_eq!(fine(0.1834), "0.18");
        assert_eq!(fine(12.44), "12.4");
        assert_eq!(fine(435_683.0), "435,683");
        assert_eq!(time(23.04), "23 µs");
        assert_eq!(time(1_420.0), "1.42 ms");
        assert_eq!(time(2_100_000.0), "2.1 s");
        assert_eq!(percent(0.034), "3 %");
    }
}
