//! Named stories: counterparts of Pequod's tests, and of each of its known wrong answers.
