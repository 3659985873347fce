package index

import (
	"encoding/binary"
	"sync"
)

// The first byte of a key says what the record is. Numbers are big-endian and
// 8 bytes long, so that keys sort as the numbers do.
const (
	keyInode   = 'i' // ino                 -> inode
	keyDirent  = 'd' // dir name            -> ino, kind, cookie
	keyCookie  = 'k' // dir ^cookie         -> ino, kind, name
	keyBackref = 'b' // ino parent cookie   -> nothing
	keyExtent  = 'e' // ino off             -> extent
	keyChanged = 'n' // dir name            -> nothing
	keyStale   = 'a' // dir name            -> nothing
	keyLink    = 'l' // link id             -> ino
	keyXattr   = 'x' // ino name            -> value
	keyOrphan  = 'o' // ino                 -> nothing
	keySegment = 'g' // segment             -> live bytes, merged by addition
	keyPages   = 'p' // multihash           -> CRC32C of each 4 KiB page
	keyRef     = 'r' // name                -> value
	keyVersion = 'v' //                     -> format version
	keyNextIno = 'w' //                     -> lowest inode number never reserved
)

// key is the buffer a key is built in; pooled, since the engine's interface
// would make a buffer on the stack escape.
type key struct{ b []byte }

var keyPool = sync.Pool{New: func() any { return &key{b: make([]byte, 0, 64)} }}

func newKey() *key { return keyPool.Get().(*key) }

func (k *key) free() { keyPool.Put(k) }

func key1(b []byte, kind byte, n uint64) []byte {
	return binary.BigEndian.AppendUint64(append(b[:0], kind), n)
}

func key2(b []byte, kind byte, n, m uint64) []byte {
	return binary.BigEndian.AppendUint64(key1(b, kind, n), m)
}

// keyCookieOf is the key of an entry under its cookie: newest first, see Dirents.
func keyCookieOf(b []byte, dir Ino, cookie uint64) []byte {
	return key2(b, keyCookie, uint64(dir), ^cookie)
}

func keyName(b []byte, kind byte, n uint64, name string) []byte {
	return append(key1(b, kind, n), name...)
}

func keyText(b []byte, kind byte, text string) []byte {
	return append(append(b[:0], kind), text...)
}

// keyNum is the number at position i (0, 1, …) of a key.
func keyNum(k []byte, i int) (uint64, bool) {
	at := 1 + 8*i
	if len(k) < at+8 {
		return 0, false
	}
	return binary.BigEndian.Uint64(k[at:]), true
}

// keyTail is what follows one number in a key.
func keyTail(k []byte) (string, bool) {
	if len(k) < 9 {
		return "", false
	}
	return string(k[9:]), true
}

// prefixEnd returns the smallest key above all keys that begin with p.
func prefixEnd(p []byte) []byte {
	end := append([]byte(nil), p...)
	for i := len(end) - 1; i >= 0; i-- {
		if end[i]++; end[i] != 0 {
			return end[:i+1]
		}
	}
	return nil
}
