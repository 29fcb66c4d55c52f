// Package clients names what the tests' programs in Go use, so that it is fetched.
package clients

import _ "github.com/redis/go-redis/v9"
