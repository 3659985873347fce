package unixfs

import "time"

// Stat is the optional metadata of a UnixFS node; zero fields are absent.
type Stat struct {
	Mode  uint32    // permission bits 07777
	Mtime time.Time // any instant but the zero time
}
