//! The code blocks of a page, and the commands in them.

/// Languages of blocks that are not executed, and have no commands.
const PASSIVE: [&str; 6] = ["text", "toml", "json", "python", "rust", "sql"];

/// The beginnings of lines that are commands.
const COMMANDS: [&str; 6] = ["$ ", "larder ", "bg ", "redis-cli ", "curl ", "make "];

/// A fenced code block.
struct Block {
    /// The number of the line of its opening fence.
    line: usize,
    /// The language after the opening fence.
    language: String,
    text: String,
    /// The last heading above the block.
    section: String,
    /// The paragraph above the block, in one line. Empty if another block is directly above.
    above: String,
}

/// Commands that are executed together, and the output that the page shows for them.
pub struct Step {
    pub line: usize,
    pub commands: String,
    /// `None` if the page does not show the output.
    pub output: Option<String>,
    /// True for a script that ends at the first command that fails.
    pub is_script: bool,
}

/// Returns the steps of the selected sections of a page.
///
/// # Errors
/// A block is neither executed nor marked.
pub fn steps(page: &str, is_selected: impl Fn(&str) -> bool) -> Result<Vec<Step>, String> {
    let blocks = blocks(page)?;
    let mut steps = Vec::new();
    for (at, block) in blocks.iter().enumerate() {
        let line = block.line;
        let is_command = |line: &str| COMMANDS.iter().any(|start| line.starts_with(start));
        match &*block.language {
            "sh" if is_selected(&block.section) => {
                steps.extend(steps_of(block, blocks.get(at + 1)));
            }
            "sh" => {}
            "console" if block.above.contains("need") => {}
            "console" => {
                return Err(format!(
                    "line {line}: the paragraph above must name what the commands need"
                ));
            }
            language if !PASSIVE.contains(&language) => {
                return Err(format!("line {line}: blocks in {language} are not known"));
            }
            language if block.text.lines().any(is_command) => {
                return Err(format!("line {line}: commands in a block of {language}"));
            }
            _ => {}
        }
    }
    Ok(steps)
}

/// Returns the fenced blocks of a page.
///
/// # Errors
/// A block has no language or is not closed, or code is indented instead of fenced.
fn blocks(page: &str) -> Result<Vec<Block>, String> {
    let mut blocks = Vec::new();
    let (mut section, mut above) = (String::new(), String::new());
    let mut after_blank = false;
    let mut lines = (1..).zip(page.lines());
    while let Some((line, text)) = lines.next() {
        let is_in_list = above.starts_with(['-', '*']) || above.starts_with(char::is_numeric);
        if let Some(language) = text.strip_prefix("```") {
            if language.is_empty() {
                return Err(format!("line {line}: the block has no language"));
            }
            let mut code = String::new();
            loop {
                let Some((_, text)) = lines.next() else {
                    return Err(format!("line {line}: the block is not closed"));
                };
                if text == "```" {
                    break;
                }
                code.push_str(text);
                code.push('\n');
            }
            blocks.push(Block {
                line,
                language: language.to_owned(),
                text: code,
                section: section.clone(),
                above: std::mem::take(&mut above),
            });
        } else if text.trim_start().starts_with("```") {
            return Err(format!("line {line}: the fence is indented"));
        } else if text.starts_with("    ") && after_blank && !is_in_list {
            return Err(format!("line {line}: code is indented instead of fenced"));
        } else if let Some(heading) = text.strip_prefix('#') {
            section = heading.trim_start_matches('#').trim().to_owned();
            above.clone_from(&section);
        } else if !text.is_empty() {
            if after_blank {
                above.clear();
            }
            above.push_str(text);
            above.push(' ');
        }
        after_blank = text.is_empty();
    }
    Ok(blocks)
}

/// Returns the steps of a block of shell commands. `below` is the block directly below it.
fn steps_of(block: &Block, below: Option<&Block>) -> Vec<Step> {
    if !block.text.starts_with("$ ") {
        let output = below.filter(|below| below.language == "text" && below.above.is_empty());
        return vec![Step {
            line: block.line,
            commands: block.text.clone(),
            output: output.map(|block| block.text.clone()),
            is_script: true,
        }];
    }
    let mut steps: Vec<Step> = Vec::new();
    for (line, text) in (block.line + 1..).zip(block.text.lines()) {
        if let Some(command) = text.strip_prefix("$ ") {
            steps.push(Step {
                line,
                commands: format!("{command}\n"),
                output: Some(String::new()),
                is_script: false,
            });
            continue;
        }
        let step = steps.last_mut().expect("the block begins with a prompt");
        let output = step.output.get_or_insert_default();
        let is_continued = output.is_empty() && step.commands.ends_with("\\\n");
        let continuation = text.strip_prefix("> ").or((text == ">").then_some(""));
        let continuation = continuation.filter(|_| output.is_empty());
        match continuation.or_else(|| is_continued.then_some(text)) {
            Some(continuation) => step.commands += &format!("{continuation}\n"),
            None => output.push_str(&format!("{text}\n")),
        }
    }
    steps
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_executed_or_marked() {
        let steps = |page: &str| steps(page, |_| true).map(|steps| steps.len());
        assert_eq!(steps("```sh\n$ ls\n$ ls\n```\n"), Ok(2));
        assert_eq!(steps("```sh\nls\nls\n```\n"), Ok(1));
        assert_eq!(steps("```text\na table\n```\n"), Ok(0));
        assert_eq!(steps("It needs S3:\n\n```console\n$ larder\n```\n"), Ok(0));
        for unmarked in [
            "```\nls\n```\n",
            "```ruby\nputs 1\n```\n",
            "Text:\n\n    larder serve\n",
            "```text\n$ larder serve\n```\n",
            "Text:\n\n```console\n$ larder serve\n```\n",
            "```sh\nls\n",
        ] {
            assert!(steps(unmarked).is_err(), "{unmarked}");
        }
    }

    #[test]
    fn a_heading_separates_a_block_from_the_output_of_the_block_above() {
        let page = "```sh\nls\n```\n\n## Syntax\n\n```text\na\n```\n";
        let steps = steps(page, |_| true).expect("a page");
        assert_eq!(steps[0].output, None);
    }
}
