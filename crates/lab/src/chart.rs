//! Charts as SVG text: no script, colours from the page's style sheet, every mark with its figures
//! as a tooltip.
//!
//! Colours stand for processes, the same in every chart: server, proxy, generator. In a chart of
//! curves they stand for the direct server and for respool before it. Throughput is an area with
//! its own axis on the right, so that it cannot be taken for a line.

use std::fmt::Write;

use crate::figure;
use crate::report::RateSample;

/// Escapes text for use between tags and in attributes.
pub fn escape(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            other => safe.push(other),
        }
    }
    safe
}

/// A stretch of samples of one measurement.
pub struct Stretch<'a> {
    /// Its name in the tooltip.
    pub name: String,
    /// The text above it; may be empty.
    pub mark: String,
    /// Seconds at which its first sample begins.
    pub start_s: f64,
    /// Its samples.
    pub samples: &'a [RateSample],
}

/// A chart over time.
pub struct TimeChart<'a> {
    /// The text for screen readers.
    pub label: String,
    /// Width in its own coordinates; the page scales it.
    pub width: f64,
    /// Height in its own coordinates.
    pub height: f64,
    /// Seconds at the left edge and at the right edge.
    pub span_s: (f64, f64),
    /// The time that the axis shows as 0, seconds.
    pub zero_s: f64,
    /// Cores at the top of the left axis, at least.
    pub cores: f64,
    /// Requests a second at the top of the right axis, at least.
    pub requests_per_s: f64,
    /// The stretches to draw.
    pub stretches: Vec<Stretch<'a>>,
}

impl TimeChart<'_> {
    /// CPU of each process as lines by the left axis, throughput as an area by the right one.
    pub fn svg(&self) -> String {
        let frame = PlotFrame {
            left: 46.0,
            right: self.width - 58.0,
            top: 34.0,
            bottom: self.height - 40.0,
        };
        let (cores, cores_step) = nice(self.cores.max(0.1), 4);
        let (rate, rate_step) = nice(self.requests_per_s.max(1.0), 4);
        let x = Scale {
            from: self.span_s,
            to: (frame.left, frame.right),
        };
        let y_cores = Scale {
            from: (0.0, cores),
            to: (frame.bottom, frame.top),
        };
        let y_rate = Scale {
            from: (0.0, rate),
            to: (frame.bottom, frame.top),
        };
        let mut svg = open(self.width, self.height, &self.label);
        for tick in ticks(cores, cores_step) {
            let y = y_cores.at(tick);
            line(&mut svg, "grid", frame.left, y, frame.right, y);
            text(
                &mut svg,
                "tick end",
                frame.left - 6.0,
                y + 4.0,
                &format!("{tick:.*}", decimals(cores_step)),
            );
        }
        for tick in ticks(rate, rate_step) {
            text(
                &mut svg,
                "tick",
                frame.right + 6.0,
                y_rate.at(tick) + 4.0,
                &figure::short(tick),
            );
        }
        let span = self.span_s.1 - self.span_s.0;
        let (_, step) = nice(span.max(0.001), 8);
        let mut tick = ((self.span_s.0 - self.zero_s) / step).ceil() * step;
        while tick <= self.span_s.1 - self.zero_s + step * 1e-6 {
            let digits = decimals(step);
            text(
                &mut svg,
                "tick middle",
                x.at(self.zero_s + tick),
                frame.bottom + 16.0,
                &format!("{tick:.digits$}"),
            );
            tick += step;
        }
        text(&mut svg, "axis", 4.0, 14.0, "CPU, cores");
        text(&mut svg, "axis end", self.width - 4.0, 14.0, "requests/s");
        text(
            &mut svg,
            "axis middle",
            f64::midpoint(frame.left, frame.right),
            self.height - 6.0,
            "seconds",
        );
        for stretch in &self.stretches {
            self.draw(&mut svg, stretch, &frame, x, y_cores, y_rate);
        }
        line(
            &mut svg,
            "base",
            frame.left,
            frame.bottom,
            frame.right,
            frame.bottom,
        );
        svg.push_str("</svg>");
        svg
    }

    /// A sample covers the time since the one before it, so it is a step of that width.
    fn draw(
        &self,
        svg: &mut String,
        stretch: &Stretch<'_>,
        frame: &PlotFrame,
        x: Scale,
        cores: Scale,
        rate: Scale,
    ) {
        let Some(last) = stretch.samples.last() else {
            return;
        };
        let _ = write!(svg, "<g><title>{}</title>", escape(&stretch.name));
        let steps = |value: &dyn Fn(&RateSample) -> Option<f64>, y: Scale| {
            let mut path = String::new();
            let mut from = stretch.start_s;
            for sample in stretch.samples {
                if let Some(value) = value(sample) {
                    let command = if path.is_empty() { 'M' } else { 'L' };
                    let _ = write!(
                        path,
                        "{command}{:.1} {:.1}H{:.1}",
                        x.at(from),
                        y.at(value),
                        x.at(sample.at_s)
                    );
                }
                from = sample.at_s;
            }
            path
        };
        let area = steps(&|sample| Some(sample.requests_per_s), rate);
        let _ = write!(
            svg,
            "<path class=\"rate\" d=\"{area}V{:.1}H{:.1}Z\"/>",
            frame.bottom,
            x.at(stretch.start_s)
        );
        for (class, value) in PROCESSES {
            let path = steps(&value, cores);
            if !path.is_empty() {
                let _ = write!(svg, "<path class=\"line {class}\" d=\"{path}\"/>");
            }
        }
        svg.push_str("</g>");
        if !stretch.mark.is_empty() {
            let middle = f64::midpoint(x.at(stretch.start_s), x.at(last.at_s));
            text(svg, "mark middle", middle, frame.top - 5.0, &stretch.mark);
        }
    }
}

type ChartFigure = fn(&RateSample) -> Option<f64>;

/// The processes, in the order of drawing, with their classes in the style sheet.
const PROCESSES: [(&str, ChartFigure); 3] = [
    ("generator", |sample| sample.generator),
    ("server", |sample| sample.server),
    ("proxy", |sample| sample.proxy),
];

/// One row of [`costs`].
pub struct CostRow {
    /// Its name at the left.
    pub name: String,
    /// Microseconds per request of server, proxy and generator.
    pub parts: [Option<f64>; 3],
    /// The text behind the bar.
    pub note: String,
}

/// Bars of CPU per request, one for each target, divided by process.
pub fn costs(label: &str, rows: &[CostRow]) -> String {
    let (width, row_height, left) = (460.0, 30.0, 118.0);
    let top = 8.0;
    let bottom = top + rows.len() as f64 * row_height;
    let height = bottom + 38.0;
    let most = rows
        .iter()
        .map(|row| row.parts.iter().flatten().sum())
        .fold(0.01, f64::max);
    let (most, step) = nice(most, 5);
    // Leaves room for the text behind the longest bar.
    let x = Scale {
        from: (0.0, most),
        to: (left, width - 82.0),
    };
    let mut svg = open(width, height, label);
    for tick in ticks(most, step) {
        line(&mut svg, "grid", x.at(tick), top, x.at(tick), bottom);
        text(
            &mut svg,
            "tick middle",
            x.at(tick),
            bottom + 16.0,
            &figure::short(tick),
        );
    }
    let middle = x.at(most / 2.0);
    text(
        &mut svg,
        "axis middle",
        middle,
        bottom + 33.0,
        "CPU per request, µs",
    );
    for (place, row) in rows.iter().enumerate() {
        let y = top + place as f64 * row_height;
        text(&mut svg, "name end", left - 8.0, y + 19.0, &row.name);
        let mut from = 0.0;
        for (part, class) in row.parts.iter().zip(["server", "proxy", "generator"]) {
            let Some(part) = *part else { continue };
            // A gap in the background colour separates neighbours without an outline.
            let length = (x.at(from + part) - x.at(from) - 1.5).max(0.5);
            let _ = write!(
                svg,
                "<rect class=\"bar {class}\" x=\"{:.1}\" y=\"{:.1}\" width=\"{length:.1}\" height=\"18\" rx=\"2\">\
                 <title>{}: {class} {} µs per request</title></rect>",
                x.at(from),
                y + 5.0,
                escape(&row.name),
                figure::fine(part)
            );
            from += part;
        }
        text(&mut svg, "note", x.at(from) + 6.0, y + 19.0, &row.note);
    }
    line(&mut svg, "base", left, top, left, bottom);
    svg.push_str("</svg>");
    svg
}

/// One row of [`times`].
pub struct TimeRow {
    /// Its name at the left.
    pub name: String,
    /// Microseconds: p50, p99, p99.9.
    pub us: [Option<f64>; 3],
}

/// Times of requests on a logarithmic axis: for each target the median, 99 % and 99.9 %.
pub fn times(label: &str, rows: &[TimeRow]) -> String {
    let (width, row_height, left) = (460.0, 30.0, 118.0);
    let top = 8.0;
    let bottom = top + rows.len() as f64 * row_height;
    let height = bottom + 38.0;
    let all = || rows.iter().flat_map(|row| row.us.iter().flatten().copied());
    let least = all().fold(f64::INFINITY, f64::min).max(0.1);
    let most = all().fold(1.0, f64::max);
    let (low, high) = if least.is_finite() {
        (
            least.log10().floor(),
            (most.log10().ceil()).max(least.log10().floor() + 1.0),
        )
    } else {
        (0.0, 1.0)
    };
    let x = Scale {
        from: (low, high),
        to: (left, width - 24.0),
    };
    let mut svg = open(width, height, label);
    let mut power = low;
    while power <= high {
        line(&mut svg, "grid", x.at(power), top, x.at(power), bottom);
        text(
            &mut svg,
            "tick middle",
            x.at(power),
            bottom + 16.0,
            &figure::time(10f64.powf(power)),
        );
        power += 1.0;
    }
    let middle = x.at(f64::midpoint(low, high));
    text(
        &mut svg,
        "axis middle",
        middle,
        bottom + 33.0,
        "time of a request, logarithmic",
    );
    for (place, row) in rows.iter().enumerate() {
        let y = top + (place as f64 + 0.5) * row_height;
        text(&mut svg, "name end", left - 8.0, y + 4.0, &row.name);
        let place_of = |us: f64| x.at(us.max(0.1).log10());
        if let (Some(first), Some(last)) = (row.us[0], row.us[2]) {
            line(&mut svg, "range", place_of(first), y, place_of(last), y);
        }
        for (us, name) in row.us.iter().zip(["p50", "p99", "p99.9"]) {
            let Some(us) = *us else { continue };
            let at = place_of(us);
            let shape = match name {
                "p50" => format!("<circle class=\"dot\" cx=\"{at:.1}\" cy=\"{y:.1}\" r=\"5\">"),
                "p99" => format!(
                    "<path class=\"dot\" d=\"M{:.1} {y:.1}L{at:.1} {:.1}L{:.1} {y:.1}L{at:.1} {:.1}Z\">",
                    at - 5.0,
                    y - 5.0,
                    at + 5.0,
                    y + 5.0
                ),
                _ => format!(
                    "<rect class=\"dot\" x=\"{:.1}\" y=\"{:.1}\" width=\"3\" height=\"14\">",
                    at - 1.5,
                    y - 7.0
                ),
            };
            let end = match name {
                "p50" => "circle",
                "p99" => "path",
                _ => "rect",
            };
            let _ = write!(
                svg,
                "{shape}<title>{}: {name} {}</title></{end}>",
                escape(&row.name),
                figure::time(us)
            );
        }
    }
    line(&mut svg, "base", left, top, left, bottom);
    svg.push_str("</svg>");
    svg
}

/// One line of [`curves`].
pub struct Curve {
    /// Its name in legend and tooltips.
    pub name: String,
    /// Its class in the style sheet.
    pub class: &'static str,
    /// The dash pattern, to tell curves of one class apart; 0 is a solid line.
    pub dash: usize,
    /// From left to right, above zero.
    pub points: Vec<(f64, f64)>,
    /// `a` and `b` of a thin line `a + b * x` beside it.
    pub fitted: Option<(f64, f64)>,
}

/// Most marks on a logarithmic axis.
const MARKS_MAX: usize = 8;

/// The marks of a logarithmic axis for these values: 1, 2, 5, 10 and so on, or powers of ten where
/// these are too many. The axis has no place for values of zero or less.
fn logarithmic(values: &mut dyn Iterator<Item = f64>) -> Vec<f64> {
    let values = values.filter(|&value| value > 0.0);
    let (least, most) = values.fold((f64::INFINITY, 0.0), |(least, most): (f64, f64), value| {
        (least.min(value), most.max(value))
    });
    if most <= 0.0 {
        return vec![1.0, 10.0];
    }
    let marks = |digits: &[f64]| {
        let powers = least.log10().floor() as i32..=most.log10().ceil() as i32 + 1;
        let marks = powers.flat_map(|power| digits.iter().map(move |d| d * 10f64.powi(power)));
        let marks: Vec<f64> = marks.collect();
        let first = marks.iter().rposition(|&mark| mark <= least).unwrap_or(0);
        let last = marks.iter().position(|&mark| mark >= most);
        marks[first..=last.unwrap_or(0).max(first + 1)].to_vec()
    };
    let fine = marks(&[1.0, 2.0, 5.0]);
    if fine.len() <= MARKS_MAX {
        fine
    } else {
        marks(&[1.0])
    }
}

/// The width of a chart of curves with its axes.
const CURVES_WIDTH: f64 = 560.0;
const CURVES_PLOT: f64 = 380.0;

/// The height of a chart of curves with `count` names in the legend.
fn curves_height(count: usize) -> f64 {
    CURVES_PLOT + 20.0 * count.div_ceil(2) as f64
}

/// Several charts of curves in one file, two in a row, each below its title.
pub fn board(label: &str, style: &str, charts: &[(String, String)], curves: usize) -> String {
    const TITLE: f64 = 28.0;
    let height = curves_height(curves) + TITLE;
    let whole = (2.0 * CURVES_WIDTH, charts.len().div_ceil(2) as f64 * height);
    let mut svg = open(whole.0, whole.1, label);
    svg.insert_str("<svg".len(), " xmlns=\"http://www.w3.org/2000/svg\"");
    let _ = write!(
        svg,
        "<style>{style}</style><rect class=\"ground\" width=\"100%\" height=\"100%\"/>"
    );
    for (place, (title, chart)) in charts.iter().enumerate() {
        let (x, y) = (
            (place % 2) as f64 * CURVES_WIDTH,
            (place / 2) as f64 * height,
        );
        text(&mut svg, "mark", x + 16.0, y + 19.0, title);
        let y = y + TITLE;
        let _ = write!(svg, "<g transform=\"translate({x:.0} {y:.0})\">{chart}</g>");
    }
    svg.push_str("</svg>\n");
    svg
}

/// Curves on two logarithmic axes: numbers at the bottom, times at the left, the legend below.
pub fn curves(label: &str, axes: (&str, &str), curves: &[Curve]) -> String {
    let (width, plot) = (CURVES_WIDTH, CURVES_PLOT);
    let height = curves_height(curves.len());
    let frame = PlotFrame {
        left: 64.0,
        right: width - 30.0,
        top: 30.0,
        bottom: plot - 44.0,
    };
    let all = || curves.iter().flat_map(|curve| curve.points.iter());
    let numbers = logarithmic(&mut all().map(|point| point.0));
    let times = logarithmic(&mut all().map(|point| point.1));
    let ends = |marks: &[f64]| (marks[0].log10(), marks[marks.len() - 1].log10());
    let x = Scale {
        from: ends(&numbers),
        to: (frame.left, frame.right),
    };
    let y = Scale {
        from: ends(&times),
        to: (frame.bottom, frame.top),
    };
    let mut svg = open(width, height, label);
    for number in numbers {
        let at = x.at(number.log10());
        line(&mut svg, "grid", at, frame.top, at, frame.bottom);
        let mark = figure::count(number);
        text(&mut svg, "tick middle", at, frame.bottom + 16.0, &mark);
    }
    for time in times {
        let at = y.at(time.log10());
        line(&mut svg, "grid", frame.left, at, frame.right, at);
        let mark = figure::time(time);
        text(&mut svg, "tick end", frame.left - 6.0, at + 4.0, &mark);
    }
    text(&mut svg, "axis", 4.0, 14.0, axes.1);
    let middle = f64::midpoint(frame.left, frame.right);
    text(&mut svg, "axis middle", middle, plot - 6.0, axes.0);
    for (place, curve) in curves.iter().enumerate() {
        curve.draw(&mut svg, axes.0, x, y);
        let left = [frame.left, middle][place % 2];
        let at = plot + 12.0 + 20.0 * (place / 2) as f64;
        let _ = write!(
            svg,
            "<path class=\"line {}\" d=\"M{left:.1} {at:.1}h26\"{}/>",
            curve.class,
            curve.dashes()
        );
        text(&mut svg, "name", left + 34.0, at + 4.0, &curve.name);
    }
    svg.push_str("</svg>");
    svg
}

impl Curve {
    fn dashes(&self) -> &'static str {
        match self.dash {
            0 => "",
            1 => " stroke-dasharray=\"7 4\"",
            _ => " stroke-dasharray=\"2 4\"",
        }
    }

    fn draw(&self, svg: &mut String, x_name: &str, x: Scale, y: Scale) {
        let path = |points: &mut dyn Iterator<Item = (f64, f64)>| {
            let mut path = String::new();
            for (place, (at, value)) in points.enumerate() {
                let command = if place == 0 { 'M' } else { 'L' };
                let _ = write!(path, "{command}{:.1} {:.1}", x.at(at), y.at(value));
            }
            path
        };
        let class = self.class;
        if let Some((a, b)) = self.fitted {
            // On these axes a straight line is curved: it is drawn as many short ones, where it is
            // above the axis.
            let steps = 100;
            let along = |step: i32| {
                let part = f64::from(step) / f64::from(steps);
                let at = x.from.0 + part * (x.from.1 - x.from.0);
                (at, (a + b * 10f64.powf(at)).log10())
            };
            let mut points = (0..=steps)
                .map(along)
                .filter(|(_, value)| (y.from.0..=y.from.1).contains(value));
            let path = path(&mut points);
            let _ = write!(svg, "<path class=\"line fitted {class}\" d=\"{path}\"/>");
        }
        let logarithms = self
            .points
            .iter()
            .map(|(at, value)| (at.log10(), value.log10()));
        let path = path(&mut logarithms.clone());
        let dashes = self.dashes();
        let _ = write!(svg, "<path class=\"line {class}\" d=\"{path}\"{dashes}/>");
        for ((at, value), (number, time)) in logarithms.zip(&self.points) {
            let _ = write!(
                svg,
                "<circle class=\"bar {class}\" cx=\"{:.1}\" cy=\"{:.1}\" r=\"3.5\"><title>{}: {} {x_name}, {}</title></circle>",
                x.at(at),
                y.at(value),
                escape(&self.name),
                figure::count(*number),
                figure::time(*time)
            );
        }
    }
}

/// One line of [`steps`].
pub struct StepLine {
    /// The name in the tooltips.
    pub name: String,
    /// Its class in the style sheet.
    pub class: String,
    /// One for each step; `None`: not measured.
    pub values: Vec<Option<f64>>,
}

/// Lines over a few named steps, with an axis from 0.
pub fn steps(label: &str, steps: &[String], lines: &[StepLine]) -> String {
    let (width, height) = (360.0, 230.0);
    let frame = PlotFrame {
        left: 62.0,
        right: width - 12.0,
        top: 12.0,
        bottom: height - 26.0,
    };
    let values = lines.iter().flat_map(|line| line.values.iter().flatten());
    let (most, step) = nice(values.copied().fold(0.01, f64::max), 4);
    let y = Scale {
        from: (0.0, most),
        to: (frame.bottom, frame.top),
    };
    let room = (frame.right - frame.left) / steps.len().max(1) as f64;
    let x = |step: usize| frame.left + (step as f64 + 0.5) * room;
    let mut svg = open(width, height, label);
    for mark in ticks(most, step) {
        let at = y.at(mark);
        let class = if mark == 0.0 { "base" } else { "grid" };
        line(&mut svg, class, frame.left, at, frame.right, at);
        let name = figure::short(mark);
        text(&mut svg, "tick end", frame.left - 6.0, at + 4.0, &name);
    }
    for (step, name) in steps.iter().enumerate() {
        text(&mut svg, "tick middle", x(step), frame.bottom + 16.0, name);
    }
    for drawn in lines {
        let found = || {
            let values = drawn.values.iter().enumerate();
            values.filter_map(|(step, value)| Some((step, (*value)?)))
        };
        let mut path = String::new();
        for (step, value) in found() {
            let command = if path.is_empty() { 'M' } else { 'L' };
            let _ = write!(path, "{command}{:.1} {:.1}", x(step), y.at(value));
        }
        if path.is_empty() {
            continue;
        }
        let class = &drawn.class;
        let _ = write!(svg, "<path class=\"line {class}\" d=\"{path}\"/>");
        for (step, value) in found() {
            let _ = write!(
                svg,
                "<circle class=\"bar {class}\" cx=\"{:.1}\" cy=\"{:.1}\" r=\"3.5\"><title>{}, {}: {}</title></circle>",
                x(step),
                y.at(value),
                escape(&drawn.name),
                escape(&steps[step]),
                figure::short(value)
            );
        }
    }
    svg.push_str("</svg>");
    svg
}

/// The requests that were due within one step of a [`Timeline`]. The first of each pair is about
/// keys of the failing server, the second about other keys.
pub struct Moment {
    /// Its beginning, seconds.
    pub at_s: f64,
    /// The median time of requests without an error.
    pub p50_us: [Option<f64>; 2],
    /// The longest time.
    pub max_us: [Option<f64>; 2],
    /// Errors of each kind.
    pub errors: [u64; 3],
}

/// Times and errors around the failure.
pub struct Timeline {
    /// The text for screen readers.
    pub label: String,
    /// Length of a step.
    pub step_s: f64,
    /// The steps, from left to right. A step without due requests may be left out.
    pub moments: Vec<Moment>,
    /// Names of the kinds of errors.
    pub error_names: [&'static str; 3],
    /// Times at which a vertical line stands, seconds, with its name.
    pub marks: Vec<(f64, String)>,
}

/// The pairs of a [`Moment`] with their classes in the style sheet. The failing server is drawn
/// last.
const PAIR: [(usize, &str, &str); 2] = [
    (1, "server", "keys of the others"),
    (0, "proxy", "keys of the server that fails"),
];

/// Times of requests above, by a logarithmic axis, and errors below.
pub fn timeline(timeline: &Timeline) -> String {
    let (width, height) = (1100.0, 460.0);
    let above = PlotFrame {
        left: 64.0,
        right: width - 20.0,
        top: 48.0,
        bottom: 290.0,
    };
    let below = PlotFrame {
        top: 320.0,
        bottom: height - 40.0,
        ..above
    };
    let moments = &timeline.moments;
    let ends = |moment: Option<&Moment>| moment.map_or(0.0, |moment| moment.at_s);
    let from = ends(moments.first());
    let last_mark = timeline.marks.iter().map(|mark| mark.0);
    let to = last_mark.fold(ends(moments.last()) + timeline.step_s, f64::max);
    let x = Scale {
        from: (from, to),
        to: (above.left, above.right),
    };
    let longest = moments.iter().flat_map(|moment| moment.max_us);
    let longest = longest.flatten().fold(1.0, f64::max);
    let least = moments.iter().flat_map(|moment| moment.p50_us);
    let least = least.flatten().fold(longest, f64::min).max(1.0);
    let (low, high) = (least.log10().floor(), longest.log10().ceil());
    let times = Scale {
        from: (low, high.max(low + 1.0)),
        to: (above.bottom, above.top),
    };
    let most = moments
        .iter()
        .map(|moment| moment.errors.iter().sum::<u64>());
    let (most, most_step) = nice(most.max().unwrap_or(0).max(1) as f64, 3);
    let errors = Scale {
        from: (0.0, most),
        to: (below.bottom, below.top),
    };
    let mut svg = open(width, height, &timeline.label);
    let mut power = times.from.0;
    while power <= times.from.1 {
        let y = times.at(power);
        line(&mut svg, "grid", above.left, y, above.right, y);
        let mark = figure::time(10f64.powf(power));
        text(&mut svg, "tick end", above.left - 6.0, y + 4.0, &mark);
        power += 1.0;
    }
    for tick in ticks(most, most_step) {
        let y = errors.at(tick);
        line(&mut svg, "grid", below.left, y, below.right, y);
        let mark = figure::short(tick);
        text(&mut svg, "tick end", below.left - 6.0, y + 4.0, &mark);
    }
    let (_, step) = nice((to - from).max(0.001), 10);
    let mut tick = (from / step).ceil() * step;
    while tick <= to + step * 1e-6 {
        let mark = format!("{tick:.*}", decimals(step));
        // Avoids -0.
        let mark = if tick.abs() < step * 1e-6 { "0" } else { &mark };
        text(
            &mut svg,
            "tick middle",
            x.at(tick),
            below.bottom + 16.0,
            mark,
        );
        tick += step;
    }
    text(&mut svg, "axis", 4.0, 14.0, "time of a request");
    let name_of_errors = format!("errors in {:.0} ms", timeline.step_s * 1e3);
    text(&mut svg, "axis", 4.0, below.top - 8.0, &name_of_errors);
    let middle = f64::midpoint(above.left, above.right);
    text(
        &mut svg,
        "axis middle",
        middle,
        height - 6.0,
        "seconds from the moment on",
    );
    for moment in moments {
        timeline.draw_errors(&mut svg, moment, x, errors);
    }
    for (place, class, name) in PAIR {
        timeline.draw_times(&mut svg, (place, class, name), x, times);
    }
    for (place, (at, name)) in timeline.marks.iter().enumerate() {
        let at = x.at(*at);
        line(&mut svg, "base", at, above.top, at, below.bottom);
        // The names stand one below the other, as their lines may be close.
        text(
            &mut svg,
            "mark",
            at + 4.0,
            above.top - 36.0 + 12.0 * place as f64,
            name,
        );
    }
    line(
        &mut svg,
        "base",
        below.left,
        below.bottom,
        below.right,
        below.bottom,
    );
    svg.push_str("</svg>");
    svg
}

impl Timeline {
    fn draw_errors(&self, svg: &mut String, moment: &Moment, x: Scale, y: Scale) {
        let left = x.at(moment.at_s);
        let width = (x.at(moment.at_s + self.step_s) - left - 0.5).max(0.5);
        let mut from = 0.0;
        for (place, &count) in moment.errors.iter().enumerate() {
            if count == 0 {
                continue;
            }
            let to = from + count as f64;
            let _ = write!(
                svg,
                "<rect class=\"bar load{}\" x=\"{left:.1}\" y=\"{:.1}\" width=\"{width:.1}\" height=\"{:.1}\">\
                 <title>{:.2} s: {count} {}</title></rect>",
                place + 1,
                y.at(to),
                y.at(from) - y.at(to),
                moment.at_s,
                escape(self.error_names[place])
            );
            from = to;
        }
    }

    /// Draws the median as a line that breaks where no request was answered, and the longest times
    /// as dots.
    fn draw_times(
        &self,
        svg: &mut String,
        (place, class, name): (usize, &str, &str),
        x: Scale,
        y: Scale,
    ) {
        let mut path = String::new();
        let mut is_broken = true;
        let mut dots = String::new();
        let mut last = f64::NEG_INFINITY;
        for moment in &self.moments {
            is_broken |= moment.at_s > last + 1.5 * self.step_s;
            last = moment.at_s;
            let (Some(p50), Some(max)) = (moment.p50_us[place], moment.max_us[place]) else {
                is_broken = true;
                continue;
            };
            let at = x.at(moment.at_s + self.step_s / 2.0);
            let height = |us: f64| y.at(us.max(1.0).log10());
            let command = if is_broken { 'M' } else { 'L' };
            let _ = write!(path, "{command}{at:.1} {:.1}", height(p50));
            is_broken = false;
            let _ = write!(
                dots,
                "<circle class=\"bar {class}\" cx=\"{at:.1}\" cy=\"{:.1}\" r=\"2\"><title>{:.2} s, {name}: median {}, \
                 longest {}</title></circle>",
                height(max),
                moment.at_s,
                figure::time(p50),
                figure::time(max)
            );
        }
        if !path.is_empty() {
            let _ = write!(svg, "<path class=\"line {class}\" d=\"{path}\"/>{dots}");
        }
    }
}

#[derive(Clone, Copy)]
struct PlotFrame {
    left: f64,
    right: f64,
    top: f64,
    bottom: f64,
}

#[derive(Clone, Copy)]
struct Scale {
    from: (f64, f64),
    to: (f64, f64),
}

impl Scale {
    fn at(self, value: f64) -> f64 {
        let part = (value - self.from.0) / (self.from.1 - self.from.0).max(f64::MIN_POSITIVE);
        self.to.0 + part * (self.to.1 - self.to.0)
    }
}

/// The top of an axis that reaches `most`, and a round step that divides it into about so many
/// parts.
fn nice(most: f64, parts: u32) -> (f64, f64) {
    let rough = most / f64::from(parts);
    let power = 10f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 2.5, 5.0, 10.0]
        .iter()
        .map(|digit| digit * power)
        .find(|step| *step >= rough * 0.999)
        .unwrap_or(10.0 * power);
    ((most / step - 1e-9).ceil() * step, step)
}

/// Decimals that tell multiples of a step apart.
fn decimals(step: f64) -> usize {
    (0..4)
        .find(|&digits| {
            let scaled = step * 10f64.powi(digits);
            (scaled - scaled.round()).abs() < 1e-6
        })
        .unwrap_or(4) as usize
}

fn ticks(most: f64, step: f64) -> impl Iterator<Item = f64> {
    let count = (most / step).round() as u32;
    (0..=count).map(move |place| f64::from(place) * step)
}

fn open(width: f64, height: f64, label: &str) -> String {
    format!(
        "<svg viewBox=\"0 0 {width:.0} {height:.0}\" width=\"{width:.0}\" height=\"{height:.0}\" role=\"img\" aria-label=\"{}\">",
        escape(label)
    )
}

fn line(svg: &mut String, class: &str, x1: f64, y1: f64, x2: f64, y2: f64) {
    let _ = write!(
        svg,
        "<line class=\"{class}\" x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\"/>"
    );
}

fn text(svg: &mut String, class: &str, x: f64, y: f64, words: &str) {
    let _ = write!(
        svg,
        "<text class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\">{}</text>",
        escape(words)
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_end_on_round_numbers_that_hold_everything() {
        for (most, top, step) in [
            (1.97, 2.0, 0.5),
            (1_708_000.0, 2_000_000.0, 500_000.0),
            (0.03, 0.03, 0.01),
            (7.3, 8.0, 2.0),
        ] {
            let (found, found_step) = nice(most, 4);
            assert!((found - top).abs() < 1e-9 * top, "{most}: {found}");
            assert!(
                (found_step - step).abs() < 1e-9,
                "{most}: step {found_step}"
            );
        }
    }

    #[test]
    fn the_marks_of_an_axis_are_told_apart() {
        for (step, digits) in [(1.0, 0), (2.5, 1), (0.25, 2), (0.5, 1), (20.0, 0), (0.1, 1)] {
            assert_eq!(decimals(step), digits, "{step}");
        }
    }

    #[test]
    fn a_logarithmic_axis_holds_all_of_its_values() {
        let marks = |values: &[f64]| logarithmic(&mut values.iter().copied());
        assert_eq!(marks(&[2_000.0, 60_000.0])[..2], [2_000.0, 5_000.0]);
        assert_eq!(marks(&[2_000.0, 60_000.0]).last(), Some(&100_000.0));
        // Too many values for steps of 1, 2 and 5.
        assert_eq!(
            marks(&[3.0, 900.0, 9_000.0]),
            [1.0, 10.0, 100.0, 1000.0, 10_000.0]
        );
        assert_eq!(marks(&[10.0]), [10.0, 20.0]);
        assert_eq!(marks(&[]), [1.0, 10.0]);
        assert_eq!(marks(&[0.0, 10.0]), [10.0, 20.0]);
        for values in [[0.03, 0.031], [0.9, 1.1], [49.9, 5_000.1]] {
            let marks = marks(&values);
            assert!(marks.is_sorted() && marks.len() > 1, "{marks:?}");
            assert!(
                marks[0] <= values[0] && marks[marks.len() - 1] >= values[1],
                "{marks:?}"
            );
        }
    }

    #[test]
    fn every_tag_that_is_opened_is_closed_and_no_figure_is_missing() {
        let samples = [RateSample {
            at_s: 1.1,
            requests_per_s: 5.0,
            server: Some(0.5),
            proxy: None,
            generator: Some(0.2),
        }];
        let chart = TimeChart {
            label: "a < b".into(),
            width: 400.0,
            height: 200.0,
            span_s: (1.0, 2.0),
            zero_s: 1.0,
            cores: 2.0,
            requests_per_s: 10.0,
            stretches: vec![Stretch {
                name: "GET & SET".into(),
                mark: "1".into(),
                start_s: 1.0,
                samples: &samples,
            }],
        };
        let cost = CostRow {
            name: "x".into(),
            parts: [Some(1.0), None, Some(0.5)],
            note: "n".into(),
        };
        let time = TimeRow {
            name: "x".into(),
            us: [Some(23.0), Some(99.0), None],
        };
        let none = TimeRow {
            name: "y".into(),
            us: [None; 3],
        };
        let around = |moments| Timeline {
            label: "e".into(),
            step_s: 0.05,
            moments,
            error_names: ["a", "b", "c"],
            marks: vec![(0.0, "m".into())],
        };
        let curve = |fitted| Curve {
            name: "x".into(),
            class: "server",
            dash: 1,
            points: vec![(1.0, 20.0), (10.0, 25.0), (10_000.0, 5_000.0)],
            fitted,
        };
        for svg in [
            chart.svg(),
            curves("d", ("n", "t"), &[curve(None), curve(Some((-3.0, 0.5)))]),
            curves("d", ("n", "t"), &[]),
            timeline(&around(Vec::new())),
            timeline(&around(vec![Moment {
                at_s: -0.05,
                p50_us: [None, Some(120.0)],
                max_us: [None, Some(9_000.0)],
                errors: [3, 0, 1],
            }])),
            costs("c", &[cost]),
            times("t", &[time]),
            times("t", &[none]),
        ] {
            for tag in ["svg", "g", "title", "text", "circle", "rect"] {
                let opened = svg.matches(&format!("<{tag} ")).count()
                    + svg.matches(&format!("<{tag}>")).count();
                assert_eq!(
                    opened,
                    svg.matches(&format!("</{tag}>")).count(),
                    "{tag} in {svg}"
                );
            }
            assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        }
        assert!(chart.svg().contains("GET &amp; SET"));
    }
}
