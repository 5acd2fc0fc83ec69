//! `impl Engine` stays thin: where it is written, its length, and which methods belong to it.
//! `impl DataPlane` becomes no longer.
//!
//! A private method belongs to `Engine` if it touches two components, or calls another method of
//! `Engine`. Any other method belongs to the data plane, or to the one component that it touches.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use proc_macro2::{Delimiter, Spacing, TokenTree};

use super::sources::{Sources, ident, inside, without_tests};

const SRC: &str = "crates/engine/src/";

/// Fields of `struct Engine` that are no components.
const NO_COMPONENTS: [&str; 2] = ["plane", "tick_at"];

/// Lines of code of all `impl Engine` blocks together, at most. This number may only shrink: a
/// change that makes the blocks shorter lowers it. Comments are free: a step has its reason.
const LINES_MAX: usize = 2_025;
/// The same for `impl DataPlane`.
const PLANE_LINES_MAX: usize = 9_310;
/// A bound has to be lowered once the blocks are this much shorter.
const LINES_SLACK: usize = 50;

/// The report on `impl Engine` in the sources. It is empty if all is well.
pub(super) fn report(sources: &Sources) -> String {
    let mut report = String::new();
    let mut blocks = Vec::new();
    let mut components = Vec::new();
    let mut plane_lines = 0;
    for file in sources.shipped() {
        let below = file.path.strip_prefix(SRC).unwrap_or_default();
        let is_place = below == "engine.rs" || below.starts_with("engine/");
        let of_plane = blocks_in(&file.tokens, "DataPlane");
        plane_lines += of_plane.iter().map(|block| block.lines).sum::<usize>();
        for block in blocks_in(&file.tokens, "Engine") {
            if !is_place {
                let _ = writeln!(
                    report,
                    "{}:{}: `impl Engine` stands in `engine.rs` and `engine/` only: make this a \
                     method of the component or of `DataPlane`, and return an outcome",
                    file.path, block.line
                );
            }
            blocks.push((file.path.as_str(), block));
        }
        if below == "engine.rs" {
            components = components_in(&file.tokens);
        }
    }
    if components.is_empty() {
        let _ = writeln!(
            report,
            "{SRC}engine.rs: no `struct Engine` with components was found: have this check read \
             the file where it stands now"
        );
    }
    let lines = blocks.iter().map(|(_, block)| block.lines).sum();
    println!("tidy: {}", census(&blocks, &components));
    let remedy = "move decisions to components or to `DataPlane`, which return outcomes";
    report.push_str(&length_report("Engine", lines, LINES_MAX, remedy));
    let remedy = "make state with a narrow interface a type of its own, with its methods";
    let of_plane = length_report("DataPlane", plane_lines, PLANE_LINES_MAX, remedy);
    report.push_str(&of_plane);
    report.push_str(&methods_report(&blocks, &components));
    report
}

/// The report on the sum of the lines of all `impl NAME`.
fn length_report(name: &str, lines: usize, lines_max: usize, remedy: &str) -> String {
    if lines > lines_max {
        return format!(
            "{SRC}: `impl {name}` has {lines} lines, at most {lines_max} are allowed: {remedy}\n"
        );
    }
    if lines + LINES_SLACK <= lines_max {
        return format!(
            "crates/xtask/src/tidy/engine.rs: `impl {name}` has {lines} lines: lower its bound of \
             {lines_max} to {lines}\n"
        );
    }
    String::new()
}

/// The report on the methods that belong elsewhere.
fn methods_report(blocks: &[(&str, Block)], components: &[String]) -> String {
    let all: BTreeSet<&str> = methods(blocks).map(|(_, one)| one.name.as_str()).collect();
    let mut report = String::new();
    for (path, method) in methods(blocks).filter(|(_, method)| !method.is_public) {
        let touched = method.touched(components);
        let is_other = |name: &String| *name != method.name && all.contains(name.as_str());
        let calls = method.named.iter().any(is_other);
        if calls || touched.len() > 1 {
            continue;
        }
        let to = match touched[..] {
            [component] => format!("the component `{component}`, with the data plane as argument"),
            _ => "`DataPlane`, or a function of the values that it reads".to_owned(),
        };
        let _ = writeln!(
            report,
            "{path}:{}: `Engine::{}` needs no second component and calls no other method of \
             `Engine`: move it to {to}",
            method.line, method.name
        );
    }
    report
}

/// How many lines of `impl Engine` each reason to stand there takes, without comments. A method
/// that is public and touches two components counts as public.
fn census(blocks: &[(&str, Block)], components: &[String]) -> String {
    let (mut public, mut two, mut calls) = ((0, 0), (0, 0), (0, 0));
    for (_, method) in methods(blocks) {
        let (count, lines) = match method {
            Method {
                is_public: true, ..
            } => &mut public,
            method if method.touched(components).len() > 1 => &mut two,
            _ => &mut calls,
        };
        *count += 1;
        *lines += method.lines;
    }
    let all: usize = blocks.iter().map(|(_, block)| block.lines).sum();
    format!(
        "`impl Engine` has {all} lines. {} public methods have {}, {} private ones that touch two \
         components have {}, {} that call others have {}",
        public.0, public.1, two.0, two.1, calls.0, calls.1
    )
}

fn methods<'a>(blocks: &'a [(&'a str, Block)]) -> impl Iterator<Item = (&'a str, &'a Method)> {
    let methods =
        |(path, block): &'a (&'a str, Block)| block.methods.iter().map(|one| (*path, one));
    blocks.iter().flat_map(methods)
}

/// An `impl` of one type, of no trait.
struct Block {
    line: usize,
    /// Lines of code, from `impl` to the closing brace.
    lines: usize,
    methods: Vec<Method>,
}

struct Method {
    name: String,
    line: usize,
    /// Lines of code, from `fn` to the closing brace.
    lines: usize,
    is_public: bool,
    /// The names behind `self.` and `Self::` in its body: fields and methods.
    named: BTreeSet<String>,
}

impl Method {
    /// The components that the method touches.
    fn touched<'a>(&self, components: &'a [String]) -> Vec<&'a String> {
        let is_touched = |name: &&String| self.named.contains(*name);
        components.iter().filter(is_touched).collect()
    }
}

/// The components that `Engine` owns beside the data plane: the fields of `struct Engine`.
fn components_in(tokens: &[TokenTree]) -> Vec<String> {
    let tokens = without_tests(tokens);
    let is_head = |pair: &[TokenTree]| {
        ident(pair.first()).as_deref() == Some("struct")
            && ident(pair.get(1)).as_deref() == Some("Engine")
    };
    let Some(head) = tokens.windows(2).position(is_head) else {
        return Vec::new();
    };
    let Some(body) = inside(tokens.get(head + 2), Delimiter::Brace) else {
        return Vec::new();
    };
    // `::` within a type is two colons; the one behind the name of a field stands alone.
    let field = |three: &[TokenTree]| match three {
        [TokenTree::Ident(name), TokenTree::Punct(colon), type_of]
            if colon.as_char() == ':'
                && colon.spacing() == Spacing::Alone
                && !matches!(type_of, TokenTree::Punct(next) if next.as_char() == ':') =>
        {
            Some(name.to_string())
        }
        _ => None,
    };
    let fields = body.windows(3).filter_map(field);
    let is_component = |name: &String| !NO_COMPONENTS.contains(&name.as_str());
    fields.filter(is_component).collect()
}

/// Whether the tokens before a block are `impl` and a path to `name`, as `impl super::Engine`.
/// Returns the place of `impl`.
fn head_of(tokens: &[TokenTree], name: &str) -> Option<usize> {
    let is_colon =
        |token: &TokenTree| matches!(token, TokenTree::Punct(punct) if punct.as_char() == ':');
    if ident(tokens.last()).as_deref() != Some(name) {
        return None;
    }
    let is_of_path = |token: &TokenTree| is_colon(token) || ident(Some(token)).is_some();
    let path = tokens
        .iter()
        .rev()
        .take_while(|token| is_of_path(token))
        .count();
    let path_at = tokens.len() - path;
    let is_impl = |token: &TokenTree| ident(Some(token)).as_deref() == Some("impl");
    let impl_at = path_at + tokens[path_at..].iter().rposition(is_impl)?;
    // The name is the first word, or a `::` stands between any two words of the path.
    let words = &tokens[impl_at + 1..];
    let is_path = words
        .windows(2)
        .all(|pair| is_colon(&pair[0]) || is_colon(&pair[1]));
    is_path.then_some(impl_at)
}

/// The blocks of the type `name` among `tokens`, those in modules included.
fn blocks_in(tokens: &[TokenTree], name: &str) -> Vec<Block> {
    let tokens = without_tests(tokens);
    let mut found = Vec::new();
    for (at, token) in tokens.iter().enumerate() {
        match (token, head_of(&tokens[..at], name)) {
            (TokenTree::Group(group), Some(head)) if group.delimiter() == Delimiter::Brace => {
                let line = tokens[head].span().start().line;
                let body: Vec<TokenTree> = group.stream().into_iter().collect();
                found.push(Block {
                    line,
                    lines: code_lines(&tokens[head..=at]),
                    methods: methods_in(&body),
                });
            }
            _ => {
                if let Some(body) = inside(Some(token), Delimiter::Brace) {
                    found.extend(blocks_in(&body, name));
                }
            }
        }
    }
    found
}

/// The methods of a block.
fn methods_in(tokens: &[TokenTree]) -> Vec<Method> {
    let mut found = Vec::new();
    let mut is_public = false;
    let mut at = 0;
    while at < tokens.len() {
        match (ident(tokens.get(at)).as_deref(), ident(tokens.get(at + 1))) {
            (Some("pub"), _) => {
                // `pub(crate)` is for the engine's own files.
                is_public = inside(tokens.get(at + 1), Delimiter::Parenthesis).is_none();
            }
            // A constant or a type of the block, which may be public.
            (Some("const" | "type"), Some(word)) if word != "fn" && word != "unsafe" => {
                is_public = false;
            }
            (Some("fn"), Some(name)) => {
                let (begin, line) = (at, tokens[at].span().start().line);
                let mut named = BTreeSet::new();
                let body = tokens[at..].iter().position(|token| {
                    matches!(token, TokenTree::Group(group)
                        if group.delimiter() == Delimiter::Brace)
                });
                at += body.unwrap_or_default();
                if let Some(body) = inside(tokens.get(at), Delimiter::Brace) {
                    collect_named(&body, &mut named);
                }
                found.push(Method {
                    name,
                    line,
                    lines: code_lines(&tokens[begin..tokens.len().min(at + 1)]),
                    is_public,
                    named,
                });
                is_public = false;
            }
            _ => {}
        }
        at += 1;
    }
    found
}

/// The number of lines with code, without comments and blank lines.
fn code_lines(tokens: &[TokenTree]) -> usize {
    let mut lines = BTreeSet::new();
    collect_code_lines(tokens, &mut lines);
    lines.len()
}

fn collect_code_lines(tokens: &[TokenTree], lines: &mut BTreeSet<usize>) {
    // A doc comment is the attribute `#[doc = "..."]`.
    let is_doc = |token: &TokenTree| {
        let words = inside(Some(token), Delimiter::Bracket);
        words.is_some_and(|words| ident(words.first()).as_deref() == Some("doc"))
    };
    let is_hash =
        |token: &TokenTree| matches!(token, TokenTree::Punct(punct) if punct.as_char() == '#');
    for (at, token) in tokens.iter().enumerate() {
        if is_doc(token) || is_hash(token) && tokens.get(at + 1).is_some_and(is_doc) {
            continue;
        }
        match token {
            TokenTree::Group(group) => {
                let edges = [group.span_open(), group.span_close()];
                lines.extend(edges.map(|edge| edge.start().line));
                let inner: Vec<TokenTree> = group.stream().into_iter().collect();
                collect_code_lines(&inner, lines);
            }
            other => {
                let span = other.span();
                lines.extend(span.start().line..=span.end().line);
            }
        }
    }
}

/// Collects the names behind `self.` and `Self::`.
fn collect_named(tokens: &[TokenTree], named: &mut BTreeSet<String>) {
    let is = |at: usize, c: char| match tokens.get(at) {
        Some(TokenTree::Punct(punct)) => punct.as_char() == c,
        _ => false,
    };
    for (at, token) in tokens.iter().enumerate() {
        if let TokenTree::Group(group) = token {
            let inner: Vec<TokenTree> = group.stream().into_iter().collect();
            collect_named(&inner, named);
        }
        let name = match ident(Some(token)).as_deref() {
            Some("self") if is(at + 1, '.') => ident(tokens.get(at + 2)),
            Some("Self") if is(at + 1, ':') => ident(tokens.get(at + 3)),
            _ => None,
        };
        named.extend(name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::sources::File;

    fn sources(files: &[(&str, &str)]) -> Sources {
        let file = |(path, text): &(&str, &str)| File::rust(path, (*text).into()).unwrap();
        Sources {
            files: files.iter().map(file).collect(),
        }
    }

    fn blocks(text: &str) -> Vec<(&'static str, Block)> {
        let file = File::rust("a.rs", text.into()).unwrap();
        let blocks = blocks_in(&file.tokens, "Engine");
        blocks.into_iter().map(|block| ("a.rs", block)).collect()
    }

    fn faulty(text: &str) -> String {
        methods_report(&blocks(text), &["local".to_owned(), "admin".to_owned()])
    }

    /// Other folders do not add to `Engine`. Other types, traits and tests are not meant.
    #[test]
    fn engine_is_written_in_its_own_folder() {
        let block = "impl Engine { pub fn a(&self) {} }";
        let elsewhere = report(&sources(&[("crates/engine/src/pubsub.rs", block)]));
        assert!(elsewhere.contains("pubsub.rs:1: `impl Engine` stands in"));
        for (path, text) in [
            ("crates/engine/src/engine.rs", block),
            ("crates/engine/src/engine/pinned.rs", block),
            ("crates/engine/src/pubsub.rs", "impl Engines { fn a() {} }"),
            ("crates/engine/src/pubsub.rs", "impl Drop for Engine {}"),
            (
                "crates/engine/src/pubsub.rs",
                "impl Trait for super::Engine {}",
            ),
            (
                "crates/engine/src/pubsub.rs",
                "impl engine::Engine::Part {}",
            ),
            ("crates/engine/tests/engine/world.rs", block),
        ] {
            let report = report(&sources(&[(path, text)]));
            assert!(!report.contains("stands in"), "{path}: {report}");
        }
    }

    /// A path in front of the name does not hide a block.
    #[test]
    fn block_with_a_path_is_seen() {
        for path in ["super::Engine", "crate::engine::Engine", "::a::Engine"] {
            let block = format!("impl {path} {{\n}}\n");
            let elsewhere = report(&sources(&[("crates/engine/src/pubsub.rs", &block)]));
            assert!(
                elsewhere.contains("pubsub.rs:1: `impl Engine` stands in"),
                "{path}"
            );
            let lines: usize = blocks(&block).iter().map(|(_, block)| block.lines).sum();
            assert_eq!(lines, 2, "{path}");
        }
    }

    /// The components are the fields of `struct Engine`, so a new one counts at once.
    #[test]
    fn components_are_the_fields_of_the_engine() {
        let engine = "pub struct Engine {
            pub(crate) plane: data_plane::DataPlane,
            /// Its doc.
            pub(crate) local: Box<dyn Fn(u8) -> local::Local>,
            #[expect(x)]
            new_one: New,
            tick_at: Time,
        }
        impl Engine {
            fn a(&mut self) { self.plane.b(&self.new_one); }
            fn c(&mut self) { self.local.d(&self.new_one); }
        }";
        let file = File::rust("a.rs", engine.into()).unwrap();
        assert_eq!(components_in(&file.tokens), ["local", "new_one"]);
        let report = report(&sources(&[("crates/engine/src/engine.rs", engine)]));
        assert!(
            report.contains("`Engine::a` needs no second component"),
            "{report}"
        );
        assert!(
            report.contains("move it to the component `new_one`"),
            "{report}"
        );
        assert!(!report.contains("Engine::c"), "{report}");
    }

    /// If the struct moves away, the check fails instead of finding no components.
    #[test]
    fn missing_struct_is_an_offence() {
        let block = "impl Engine { pub fn a(&self) {} }";
        let report = report(&sources(&[("crates/engine/src/engine.rs", block)]));
        assert!(report.contains("no `struct Engine`"), "{report}");
    }

    /// The lines of code count from `impl` to the brace, in all blocks. Comments do not.
    #[test]
    fn lines_of_code_of_all_blocks_count() {
        let text = "impl Engine {\n}\n\nimpl Engine {\n    // a\n\n    /// b\n    const A: &str = \
                    \"x\ny\";\n}\n";
        let lines: usize = blocks(text).iter().map(|(_, block)| block.lines).sum();
        assert_eq!(lines, 6);
    }

    /// Too many lines fail. Much fewer fail too, so that the number shrinks with the blocks.
    #[test]
    fn number_of_lines_may_only_shrink() {
        let report = |lines| length_report("Engine", lines, 100, "divide it");
        assert_eq!(report(100), "");
        assert_eq!(report(51), "");
        assert!(report(101).contains("`impl Engine` has 101 lines, at most 100 are allowed"));
        assert!(report(50).contains("lower its bound of 100 to 50"));
    }

    /// The data plane has a bound of its own. Its blocks may stand anywhere, tests do not count.
    #[test]
    fn lines_of_the_data_plane_are_bounded() {
        let long = "const A: u8 = 0;\n".repeat(PLANE_LINES_MAX);
        let here = format!("impl super::DataPlane {{{long}}}");
        let tests = format!("#[cfg(test)] mod tests {{ impl DataPlane {{{long}}} }}");
        for (text, is_long) in [(here, true), (tests, false)] {
            let report = report(&sources(&[("crates/engine/src/data_plane/link.rs", &text)]));
            let found = format!("`impl DataPlane` has {} lines", PLANE_LINES_MAX + 1);
            assert_eq!(report.contains(&found), is_long, "{report}");
        }
    }

    /// Each method counts for one reason: it is public, touches two components, or calls another.
    #[test]
    fn lines_count_by_their_reason() {
        let text = "impl Engine {
            pub fn a(&self) { self.local.b(&self.admin) }
            fn c(&mut self) {
                self.local.d(&self.admin);
            }
            fn e(&mut self) { self.c() }
        }";
        assert_eq!(
            census(&blocks(text), &["local".to_owned(), "admin".to_owned()]),
            "`impl Engine` has 7 lines. 1 public methods have 1, 1 private ones that touch two \
             components have 3, 1 that call others have 1"
        );
    }

    /// A method of one component, and one of the data plane, belong there.
    #[test]
    fn method_of_one_component_is_an_offence() {
        let one = "impl Engine { fn a(&mut self) { b(&mut self.plane, || self.local.c()); } }";
        assert!(faulty(one).contains("move it to the component `local`"));
        let none = "impl Engine { pub(crate) fn a(&mut self) { self.plane.b(); self.a() } }";
        assert!(faulty(none).contains("a.rs:1: `Engine::a` needs no second component"));
        assert!(faulty(none).contains("move it to `DataPlane`"));
    }

    /// A public constant does not make the method behind it public.
    #[test]
    fn public_constant_does_not_hide_a_method() {
        let text = "impl Engine { pub const A: u8 = 1; fn b(&mut self) { self.local.c(); } }";
        assert!(faulty(text).contains("`Engine::b`"));
        let public = "impl Engine { pub const fn b(&self) { self.local.c(); } }";
        assert_eq!(faulty(public), "");
    }

    /// Two components, a call of another method, or the public surface make a method `Engine`'s.
    #[test]
    fn flows_and_public_methods_are_clean() {
        let text = "impl Engine {
            pub fn a(&self) { self.plane.b() }
            fn c(&mut self) { self.local.d(&self.admin); }
            pub(crate) fn e(&mut self) { if x { self.c() } }
            fn f() { Self::c() }
            pub(crate) fn g(&mut self) { self.plane.b(|| { self.e() }) }
        }";
        assert_eq!(faulty(text), "");
    }
}
