mod memory;
mod oracle;
