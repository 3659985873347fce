// Package shard spreads keys over folders and locks.
//
// A [Func] maps the name of a block to the folder that holds it. The flatfs
// functions are those of go-ds-flatfs, bit for bit, and are written to a
// store's SHARDING file in its words, so that Kubo opens what cafs made and
// the other way round. The r functions are those of go-ipld-prime's
// storage/sharding; flatfs does not know them and refuses such a store.
//
// [Latches] are striped locks for keys that are too many to have one each.
package shard

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// ErrUnknown: the text names no sharding function known here.
var ErrUnknown = errors.New("unknown sharding function")

// Text before the function's name in a SHARDING file. The second is ours: a
// flatfs must refuse a layout that it cannot find blocks in.
const (
	flatfsPrefix = "/repo/flatfs/shard/v1/"
	ipldPrefix   = "/cafs/shard/v1/"
)

// maxParam bounds N: no key that a store accepts is longer.
const maxParam = 64

type kind uint8

const (
	none kind = iota
	prefix
	suffix
	nextToLast
	ipld // N1 levels of N2 characters before the last one, padded with "0"
)

// Func is a sharding function; comparable. The zero value is none, see IsZero.
type Func struct {
	kind   kind
	n      uint8 // characters per folder name
	levels uint8 // folders above a block
}

// Default is what Kubo uses: the two characters before the last one.
var Default = NextToLast(2)

// The functions of go-ipld-prime's storage/sharding.
var (
	R12  = Func{ipld, 2, 1}
	R122 = Func{ipld, 2, 2}
	R133 = Func{ipld, 3, 2}
)

// Prefix takes the first n characters of the key, padded with "_" behind it.
func Prefix(n int) Func { return flatfs(prefix, n) }

// Suffix takes the last n characters of the key, padded with "_" before it.
func Suffix(n int) Func { return flatfs(suffix, n) }

// NextToLast takes the n characters before the last one, padded with "_" before the key.
func NextToLast(n int) Func { return flatfs(nextToLast, n) }

func flatfs(k kind, n int) Func {
	if n < 1 || n > maxParam {
		panic(fmt.Sprintf("shard: parameter %d out of range", n))
	}
	return Func{k, uint8(n), 1}
}

// Parse reads the text of a SHARDING file, or its last part alone ("prefix/3",
// "r122"). Errors: ErrUnknown.
func Parse(text string) (Func, error) {
	s := strings.TrimSpace(text)
	s = strings.TrimPrefix(strings.TrimPrefix(s, flatfsPrefix), ipldPrefix)
	switch s {
	case "r12":
		return R12, nil
	case "r122":
		return R122, nil
	case "r133":
		return R133, nil
	}
	name, param, ok := strings.Cut(s, "/")
	n, err := strconv.Atoi(param)
	if !ok || err != nil || n < 1 || n > maxParam {
		return Func{}, fmt.Errorf("shard: %q: %w", text, ErrUnknown)
	}
	switch name {
	case "prefix":
		return Prefix(n), nil
	case "suffix":
		return Suffix(n), nil
	case "next-to-last":
		return NextToLast(n), nil
	}
	return Func{}, fmt.Errorf("shard: %q: %w", text, ErrUnknown)
}

// IsZero tells whether f is no function.
func (f Func) IsZero() bool { return f.kind == none }

// Levels is the number of folders above a block, 1 or 2.
func (f Func) Levels() int { return int(f.levels) }

// Flatfs tells whether go-ds-flatfs knows this function.
func (f Func) Flatfs() bool { return f.kind >= prefix && f.kind <= nextToLast }

// String is the text for a SHARDING file, without its line end.
func (f Func) String() string {
	switch f.kind {
	case prefix:
		return flatfsPrefix + "prefix/" + strconv.Itoa(int(f.n))
	case suffix:
		return flatfsPrefix + "suffix/" + strconv.Itoa(int(f.n))
	case nextToLast:
		return flatfsPrefix + "next-to-last/" + strconv.Itoa(int(f.n))
	case ipld:
		return ipldPrefix + "r1" + strings.Repeat(strconv.Itoa(int(f.n)), int(f.levels))
	}
	return ""
}

// Dir is the folder of key: a slash-separated path of Levels names. It costs no
// allocation where it is a part of the key, which is always when the key is
// long enough and there is one level.
func (f Func) Dir(key string) string {
	n := int(f.n)
	switch f.kind {
	case prefix:
		return pad(key, n-len(key), "_", false)[:n]
	case suffix:
		key = pad(key, n-len(key), "_", true)
		return key[len(key)-n:]
	case nextToLast:
		key = pad(key, n+1-len(key), "_", true)
		return key[len(key)-n-1 : len(key)-1]
	case ipld:
		if f.levels == 1 {
			return hunk(key, n, 0)
		}
		return hunk(key, n, 1) + "/" + hunk(key, n, 0)
	}
	panic("shard: Dir of the zero Func")
}

// pad adds count times fill to key, before or behind it.
func pad(key string, count int, fill string, before bool) string {
	if count <= 0 {
		return key
	}
	if before {
		return strings.Repeat(fill, count) + key
	}
	return key + strings.Repeat(fill, count)
}

// hunk is the i-th group of n characters from the end of key, its last
// character skipped; zeros where the key has no whole group there.
func hunk(key string, n, i int) string {
	end := len(key) - 1 - i*n
	if end < n {
		return strings.Repeat("0", n)
	}
	return key[end-n : end]
}
