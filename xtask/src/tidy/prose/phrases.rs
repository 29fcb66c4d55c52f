//! Finds sentences that are not plain technical English: each rule names what to write instead.

use super::extract::Passage;

/// A sentence that breaks a rule.
#[derive(Debug)]
pub struct Finding {
    pub line: usize,
    pub rule: &'static str,
    pub sentence: String,
}

const HEADLESS: &str = "begins with a relative clause; begin with a concrete noun";
const PERSONS: &str = "uses a verb for persons; write send, notify, return, report, read";
const DIALECT: &str = "uses a phrase that has a plain equivalent";
const LONG: &str = "has more than 40 words; split it";

/// Words that begin a relative clause without a noun.
const RELATIVE: [&str; 9] = [
    "who", "whom", "whose", "what", "where", "whether", "how", "why", "whoever",
];

/// Verbs that only a person does.
const SPEECH: [&str; 14] = [
    "tell", "tells", "told", "telling", "ask", "asks", "asked", "asking", "hear", "hears", "heard",
    "say", "says", "said",
];

/// The persons who may do so.
const PEOPLE: [&str; 10] = [
    "you",
    "user",
    "users",
    "operator",
    "operators",
    "reader",
    "readers",
    "people",
    "person",
    "they",
];

const PHRASES: [&[&str]; 10] = [
    &["anew"],
    &["whom"],
    &["nobody"],
    &["of", "before"],
    &["in", "one", "go"],
    &["at", "once"],
    &["for", "true"],
    &["is", "to", "be"],
    &["are", "to", "be"],
    &["was", "to", "be"],
];

const WORDS_MAX: usize = 40;

/// Every rule that a passage's sentences break; one finding for each rule and sentence.
pub fn check(passage: &Passage, found: &mut Vec<Finding>) {
    let mut line = passage.line;
    for sentence in sentences(&passage.text) {
        let words = words(&sentence);
        for rule in broken(&sentence, &words) {
            found.push(Finding {
                line,
                rule,
                sentence: sentence.trim().replace('\n', " "),
            });
        }
        line += sentence.matches('\n').count();
    }
}

fn broken(sentence: &str, words: &[String]) -> Vec<&'static str> {
    let has =
        |at: usize, choice: &[&str]| words.get(at).is_some_and(|word| choice.contains(&&**word));
    let is_question = sentence.trim_end().ends_with('?');
    let is_instruction = has(0, &["how"]) && has(1, &["to"]);
    let is_person = |at: usize| has(at.wrapping_sub(1), &PEOPLE) || has(at + 1, &PEOPLE);
    let speech = |at: &usize| has(*at, &SPEECH) && !is_person(*at);
    let phrase = |phrase: &&[&str]| words.windows(phrase.len()).any(|run| *run == **phrase);
    let mut rules = Vec::new();
    if words.len() > 1 && has(0, &RELATIVE) && !is_question && !is_instruction {
        rules.push(HEADLESS);
    }
    if (0..words.len()).any(|at| speech(&at)) {
        rules.push(PERSONS);
    }
    if PHRASES.iter().any(phrase) {
        rules.push(DIALECT);
    }
    if words.len() > WORDS_MAX {
        rules.push(LONG);
    }
    rules
}

/// The lower-case words of a sentence; code between backquotes is one word, and so is a placeholder in braces.
fn words(sentence: &str) -> Vec<String> {
    let mut words = Vec::new();
    let sentence = without_placeholders(sentence);
    for (index, part) in sentence.split('`').enumerate() {
        if index % 2 == 1 {
            words.push("`".to_owned());
            continue;
        }
        let letters = |c: char| !(c.is_alphabetic() || c == '\'' || c == '-' || c == '_');
        let own = part
            .split(letters)
            .filter(|word| word.chars().any(char::is_alphabetic));
        words.extend(own.map(str::to_lowercase));
    }
    words
}

/// Replaces `{name}` by `{placeholder}`: a placeholder stands for a noun, whatever the variable's name is.
fn without_placeholders(sentence: &str) -> String {
    let mut text = String::new();
    let mut rest = sentence;
    while let Some((before, inner)) = rest.split_once('{') {
        text.push_str(before);
        text.push_str("placeholder");
        rest = inner.split_once('}').map_or("", |(_, after)| after);
    }
    text + rest
}

/// Splits at full stops, question and exclamation marks, colons and semicolons that end a clause.
fn sentences(text: &str) -> Vec<String> {
    let mut sentences = vec![String::new()];
    let mut characters = text.chars().peekable();
    let mut in_code = false;
    while let Some(c) = characters.next() {
        let last = sentences.last_mut().expect("there is one");
        last.push(c);
        in_code ^= c == '`';
        let ends = matches!(c, '.' | '?' | '!' | ':');
        let is_break = characters.peek().is_none_or(|next| next.is_whitespace());
        if ends && is_break && !in_code && !is_abbreviation(last) {
            sentences.push(String::new());
        }
    }
    sentences
}

fn is_abbreviation(sentence: &str) -> bool {
    ["e.g.", "i.e.", "etc.", "vs."]
        .iter()
        .any(|it| sentence.ends_with(it))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(text: &str) -> Vec<&'static str> {
        let mut found = Vec::new();
        let text = text.to_owned();
        check(&Passage { line: 1, text }, &mut found);
        found.into_iter().map(|it| it.rule).collect()
    }

    #[test]
    fn each_rule_finds_its_kind_and_leaves_plain_sentences() {
        assert_eq!(rules("Whom a search asks."), [HEADLESS, PERSONS, DIALECT]);
        assert_eq!(rules("What came of a request."), [HEADLESS]);
        assert_eq!(rules("The core is told of the change."), [PERSONS]);
        assert_eq!(rules("It begins anew."), [DIALECT]);
        assert_eq!(rules("The index is to be built in one go."), [DIALECT]);
        assert_eq!(rules(&"word ".repeat(41)), [LONG]);
        for plain in [
            "Returns the owner of `slot`.",
            "What does `told` do?",
            "How to restore a node",
            "If a user asks for it, the server reports `whom`.",
            "When the lease ends, the node stops serving.",
        ] {
            assert_eq!(rules(plain), [""; 0], "{plain}");
        }
    }
}
