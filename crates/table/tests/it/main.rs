mod memory;
mod oracle;
mod order;
