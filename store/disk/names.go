package disk

import (
	"io/fs"
	"strings"
)

// validName tells whether name stays inside the folder it is relative to: a
// slash-separated path of non-empty elements other than "..", or ".".
func validName(name string) bool {
	if name == "." {
		return true
	}
	for {
		elem, rest, more := strings.Cut(name, "/")
		if elem == "" || elem == "." || elem == ".." || strings.IndexByte(elem, 0) >= 0 {
			return false
		}
		if !more {
			return true
		}
		name = rest
	}
}

func pathErr(op, name string, err error) error {
	return &fs.PathError{Op: op, Path: name, Err: err}
}
