//! Skewed keys: few are asked for often, most hardly ever.

use crate::tape::Random;

/// Draws ranks by Zipf's law: rank `k` of `n` with a probability in proportion to `1 / k^theta`, exactly.
///
/// Rejection-inversion: W. Hörmann, G. Derflinger, "Rejection-Inversion to Generate Variates from Monotone
/// Discrete Distributions", ACM TOMACS 6(3), 1996, pages 169 to 184. No table, whatever the number of ranks:
///
/// ```text
/// h(x) = 1 / x^theta                     area(x) = its integral from 1 to x
///
///   │█                                   A point is drawn evenly on the area under h from 1.5 back by h(1), up to
///   │██▄                                 n + 0.5; the inverse of the integral tells its x, the nearest whole number
///   │████▆▄▃▂▂▁▁▁▁                       is k. The stretch of k has at least the area h(k), as h is convex, and
///   └─┬─┬─┬─┬─┬─── x                     what is more than that is rejected: at its lower end, where h is above h(k).
///     1 2 3 4 5
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Zipf {
    ranks: f64,
    theta: f64,
    /// The area at the lower end of rank 1 and at the upper end of the last.
    ends: (f64, f64),
}

impl Zipf {
    /// The largest exponent: far more than any traffic has, and far from where the arithmetic becomes rough.
    pub const THETA_MAX: f64 = 4.0;

    /// For ranks 1 to `ranks`; `theta` from 0, which is evenly, to [`Self::THETA_MAX`].
    pub fn new(ranks: u32, theta: f64) -> Zipf {
        assert!(
            ranks >= 1 && (0.0..=Zipf::THETA_MAX).contains(&theta),
            "a law that there is"
        );
        let mut zipf = Zipf {
            ranks: f64::from(ranks),
            theta,
            ends: (0.0, 0.0),
        };
        zipf.ends = (
            zipf.area(1.5) - zipf.height(1.0),
            zipf.area(zipf.ranks + 0.5),
        );
        zipf
    }

    /// Draws a rank, from 1.
    pub fn draw(&self, random: &mut Random) -> u32 {
        let (first, last) = self.ends;
        loop {
            let area = last + random.part() * (first - last);
            let rank = self.place(area).round().clamp(1.0, self.ranks);
            if area >= self.area(rank + 0.5) - self.height(rank) {
                return rank as u32;
            }
        }
    }

    fn height(&self, x: f64) -> f64 {
        x.powf(-self.theta)
    }

    /// (x^(1 - theta) - 1) / (1 - theta), which is the logarithm where theta is 1; `exp_m1` keeps the digits of what is
    /// near it.
    fn area(&self, x: f64) -> f64 {
        let rest = 1.0 - self.theta;
        if rest == 0.0 {
            x.ln()
        } else {
            (rest * x.ln()).exp_m1() / rest
        }
    }

    /// The inverse of [`Self::area`].
    fn place(&self, area: f64) -> f64 {
        let rest = 1.0 - self.theta;
        if rest == 0.0 {
            area.exp()
        } else {
            ((rest * area).ln_1p() / rest).exp()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DRAWS: u32 = 200_000;

    /// How often each rank comes in so many draws, by the law.
    fn expected(ranks: u32, theta: f64) -> Vec<f64> {
        let weights: Vec<f64> = (1..=ranks).map(|k| f64::from(k).powf(-theta)).collect();
        let sum: f64 = weights.iter().sum();
        weights
            .iter()
            .map(|weight| weight / sum * f64::from(DRAWS))
            .collect()
    }

    fn drawn(ranks: u32, theta: f64) -> Vec<f64> {
        let zipf = Zipf::new(ranks, theta);
        let mut random = Random::new(20_260_101);
        let mut counts = vec![0.0; ranks as usize];
        for _ in 0..DRAWS {
            counts[zipf.draw(&mut random) as usize - 1] += 1.0;
        }
        counts
    }

    fn chi_square(found: &[f64], expected: &[f64]) -> f64 {
        found
            .iter()
            .zip(expected)
            .map(|(found, expected)| (found - expected).powi(2) / expected)
            .sum()
    }

    #[test]
    fn each_rank_comes_as_often_as_the_law_says() {
        // Evenly, little skew, what is usual, the logarithm, and more than that.
        for theta in [0.0, 0.5, 0.99, 1.0, 1.2, 2.0] {
            let found = chi_square(&drawn(50, theta), &expected(50, theta));
            // With 49 degrees of freedom a true sampler stays below it in 999 of 1,000 runs; the seed is fixed.
            assert!(found < 85.35, "theta {theta}: {found}");
        }
        // And the measure sees what is a tenth off.
        let found = chi_square(&drawn(50, 0.99), &expected(50, 1.09));
        assert!(found > 1_000.0, "{found}");
    }

    #[test]
    fn of_a_million_keys_head_and_tail_have_their_shares() {
        let (found, expected) = (drawn(1_000_000, 0.99), expected(1_000_000, 0.99));
        let mut from = 0;
        for to in [1, 2, 3, 10, 100, 1_000, 10_000, 100_000, 500_000, 1_000_000] {
            let found: f64 = found[from..to].iter().sum();
            let expected: f64 = expected[from..to].iter().sum();
            // Four standard deviations of a count.
            assert!(
                (found - expected).abs() < 4.0 * expected.sqrt(),
                "ranks {from} to {to}: {found} of {expected}"
            );
            from = to;
        }
    }

    #[test]
    fn one_key_is_always_itself() {
        assert_eq!(drawn(1, 0.99), [f64::from(DRAWS)]);
    }
}
