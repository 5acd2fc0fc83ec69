//! `#[async_test]` as redis-rs' tests use it. Theirs lives beside the crate and is not published.
//! This one is for one server and tokio. Each function becomes one test for each combination of its
//! flags, and each test gets a new connection to a new server.

use proc_macro::{Delimiter, TokenStream, TokenTree};

/// Makes tests of an asynchronous function.
#[proc_macro_attribute]
pub fn async_test(_: TokenStream, item: TokenStream) -> TokenStream {
    let tokens: Vec<TokenTree> = item.clone().into_iter().collect();
    let named = tokens.windows(2).find_map(|pair| match pair {
        [TokenTree::Ident(word), TokenTree::Ident(name)] if word.to_string() == "fn" => Some(name.to_string()),
        _ => None,
    });
    let name = named.expect("async_test stands before a function");
    let takes = tokens.iter().find_map(|token| match token {
        TokenTree::Group(group) if group.delimiter() == Delimiter::Parenthesis => Some(group.stream().to_string()),
        _ => None,
    });
    let takes = takes.expect("a function has a list of arguments");
    let conditions: String = attributes(&tokens).iter().filter(|text| text.starts_with("cfg")).map(|text| format!("#[{text}]")).collect();

    // One call for each value of each flag.
    let mut calls = vec![(String::new(), String::new())];
    for argument in takes.split(',').filter(|text| !text.trim().is_empty()) {
        let values: &[(&str, &str)] = if argument.contains("bool") {
            &[("_true", "true"), ("_false", "false")]
        } else {
            &[("", "context.async_connection().await.unwrap()")]
        };
        let longer = |(suffix, call): &(String, String)| {
            values.iter().map(|(more, value)| (format!("{suffix}{more}"), format!("{call}{value},"))).collect::<Vec<_>>()
        };
        calls = calls.iter().flat_map(longer).collect();
    }
    let context = if takes.contains("impl") { "let context = crate::support::TestContext::new();" } else { "" };
    let tests: String = calls
        .iter()
        .map(|(suffix, call)| {
            format!(
                "#[test] {conditions} fn {name}_tokio{suffix}() {{
                     crate::support::block_on_all(async {{ {context} {name}({call}).await }}, crate::support::RuntimeType::Tokio);
                 }}"
            )
        })
        .collect();
    let mut made: TokenStream = item;
    made.extend(tests.parse::<TokenStream>().expect("the tests are Rust"));
    made
}

fn attributes(tokens: &[TokenTree]) -> Vec<String> {
    let pairs = tokens.windows(2).filter_map(|pair| match pair {
        [TokenTree::Punct(mark), TokenTree::Group(group)] if mark.as_char() == '#' => Some(group.stream().to_string()),
        _ => None,
    });
    pairs.collect()
}
