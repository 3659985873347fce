package tree

import (
	"sync"

	"github.com/ipfs/go-cid"

	"cafs/mount/tree/index"
)

// Limits of reading ahead from file to file.
const (
	aheadSize   = 256 << 10 // bytes of the largest file that is fetched as a whole
	aheadBytes  = 8 << 20   // fetched and perhaps not read yet, in one directory
	aheadFiles  = 64        // likewise
	aheadSparse = 256       // inodes of others looked at between two of a directory
	aheadWalks  = 4         // directories told apart
	aheadTrust  = 4         // most that ahead.trust grows to: so many wrong guesses are forgiven
)

// ahead fetches the contents of small files before they are read. Who reads one
// file of a directory reads the others soon, as tar, cp, diff and compilers do,
// and would wait for the disk once for each. Large files have a read-ahead of
// their own (package linksys), and what is not sealed lies together in staging.
type ahead struct {
	mu     sync.Mutex
	walks  [aheadWalks]walk
	clock  uint64
	trust  int  // how often it was right of late: above 0, a directory's first read starts it
	closed bool // no more goroutines
}

// walk is somebody who reads the files of one directory. Its files come newest
// first, as the directory is listed, or in the order they were made.
type walk struct {
	dir     Ino
	used    uint64 // ahead.clock at the last read; 0: unused
	cookie  uint64 // of the file read last
	reads   int    // files read
	fetched int    // files asked for
	size    int64  // bytes of them
	read    int64  // bytes of files read
	up      bool   // in the order they were made
	at      uint64 // where to go on: below this cookie, or above this inode number
	done    bool   // there is nothing left
	running bool   // a goroutine is at it
}

// small tells whether a file is fetched as a whole: sealed, of one block.
func small(rec *index.Inode) bool {
	return rec.Kind == index.File && !rec.Unsealed && rec.Size > 0 && rec.Size <= aheadSize &&
		rec.Base.Defined() && rec.Base.Prefix().Codec == cid.Raw
}

// readsFrom notes that a file is read from its start. The caller holds n.mu,
// perhaps shared.
func (t *Tree) readsFrom(n *inode) {
	if t.opts.Sys == nil || !small(&n.rec) {
		return
	}
	a := &t.ahead
	a.mu.Lock()
	defer a.mu.Unlock()
	w := a.walk(n.rec.Parent)
	if w == nil || w.cookie == n.rec.Cookie {
		return
	}
	w.reads++
	w.read += n.rec.Size
	switch {
	case w.reads == 1 && a.trust > 0:
		w.at = 0 // all of a small directory, whatever the order
	case w.reads == 1:
		w.cookie = n.rec.Cookie
		return // the next one shows the order
	case w.reads == 2 && n.rec.Cookie > w.cookie:
		w.up, w.at, w.done = true, uint64(n.ino), false
	case w.reads == 2 && w.fetched == 0:
		w.at = n.rec.Cookie
	}
	w.cookie = n.rec.Cookie
	if w.running || w.done || a.closed || w.room() < aheadFiles/2 {
		return
	}
	w.running = true
	dir, at, up, room := w.dir, w.at, w.up, w.room()
	t.busy.Go(func() { t.fetchFiles(w, dir, at, up, room) })
}

// room is how many more files may be asked for.
func (w *walk) room() int {
	if w.size-w.read > aheadBytes {
		return 0
	}
	return aheadFiles - max(w.fetched-w.reads, 0)
}

// walk finds the walk through a directory, or begins one in the place of that
// used least recently; nil when all are busy. The caller holds mu.
func (a *ahead) walk(dir Ino) *walk {
	a.clock++
	var oldest *walk
	for i := range a.walks {
		w := &a.walks[i]
		if w.used != 0 && w.dir == dir {
			w.used = a.clock
			return w
		}
		if !w.running && (oldest == nil || w.used < oldest.used) {
			oldest = w
		}
	}
	if oldest == nil {
		return nil
	}
	if oldest.reads >= (oldest.fetched+1)/2 && oldest.reads > 1 {
		a.trust = min(a.trust+1, aheadTrust)
	} else if oldest.fetched > 2*oldest.reads+2 {
		a.trust = max(a.trust-2, 0)
	}
	*oldest = walk{dir: dir, used: a.clock}
	return oldest
}

// stop keeps further goroutines from being started.
func (a *ahead) stop() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.closed = true
}

// fetchFiles asks for the contents of up to room files of a directory.
func (t *Tree) fetchFiles(w *walk, dir Ino, at uint64, up bool, room int) {
	list := t.filesBelow
	if up {
		list = t.filesAbove
	}
	files, next, done := list(dir, at, room)
	size := int64(0)
	for _, f := range files {
		size += f.size
		if t.opts.Sys.Ahead(t.life, f.c) != nil {
			done = true
			break
		}
	}
	a := &t.ahead
	a.mu.Lock()
	defer a.mu.Unlock()
	w.running = false
	w.fetched += len(files)
	w.size += size
	if w.up == up { // else the order turned out to be the other one meanwhile
		w.at, w.done = next, done
	}
}

type aheadFile struct {
	c    cid.Cid
	size int64
}

// filesBelow lists up to n small files of a directory below a cookie, newest
// first, and where to go on; done when there are no more.
func (t *Tree) filesBelow(dir Ino, cookie uint64, n int) (files []aheadFile, next uint64, done bool) {
	for d, err := range t.db.Dirents(dir, cookie) {
		if err != nil {
			return files, cookie, true
		}
		if len(files) == n || t.life.Err() != nil {
			return files, cookie, false
		}
		cookie = d.Cookie
		if d.Kind != index.File {
			continue
		}
		if rec, err := t.db.Inode(d.Ino); err == nil && small(&rec) {
			files = append(files, aheadFile{rec.Base, rec.Size})
		}
	}
	return files, cookie, true
}

// filesAbove lists up to n small files of a directory above an inode number, in
// the order they were made, and where to go on.
func (t *Tree) filesAbove(dir Ino, ino uint64, n int) (files []aheadFile, next uint64, done bool) {
	others := 0
	for rec, err := range t.db.Inodes(Ino(ino)) {
		if err != nil {
			return files, ino, true
		}
		if len(files) == n || others == aheadSparse || t.life.Err() != nil {
			return files, ino, others == aheadSparse
		}
		ino = uint64(rec.Ino)
		others++
		if rec.Parent == dir && small(&rec.Inode) {
			files = append(files, aheadFile{rec.Base, rec.Size})
			others = 0
		}
	}
	return files, ino, true
}
