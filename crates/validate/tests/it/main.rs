mod bg_text;
mod brute;
mod counts;
mod random;
mod registers;
mod reports;
mod sets;
mod traces;
