mod brute;
mod counts;
mod random;
