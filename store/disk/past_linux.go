package disk

import (
	"errors"
	"io"
	"unsafe"

	"golang.org/x/sys/unix"
)

// pastAlign is what memory, offset and length of a read around the page cache
// must be multiples of: no device here asks for more.
const pastAlign = 4096

// PastReader is a role of those files that can be read around the page cache.
type PastReader interface {
	// ReadPast is ReadAt for bytes that are kept elsewhere afterwards: what the
	// page cache does not have does not go into it, which saves a copy of the
	// bytes and the work of making room for them. p must be whole pages; the end
	// of the file may lie within. Where that is not possible it is ReadAt. No
	// other call may use the handle meanwhile.
	ReadPast(p []byte, off int64) (int, error)
	// Cached tells whether the page cache has the better part of n bytes at off.
	Cached(off, n int64) bool
}

// ReadPast implements [PastReader].
func (f *osFile) ReadPast(p []byte, off int64) (int, error) {
	aligned := uintptr(unsafe.Pointer(unsafe.SliceData(p)))%pastAlign == 0 && len(p)%pastAlign == 0 && off%pastAlign == 0
	if !aligned || f.Cached(off, int64(len(p))) || f.setDirect(true) != nil {
		return f.ReadAt(p, off)
	}
	n, err := f.readDirect(p, off)
	if e := f.setDirect(false); e != nil {
		return n, pathErr("read", f.name, e)
	}
	if errors.Is(err, unix.EINVAL) { // the flag is taken, the read is not
		return f.ReadAt(p, off)
	}
	return n, err
}

// readDirect is ReadAt with O_DIRECT.
func (f *osFile) readDirect(p []byte, off int64) (done int, err error) {
	for done < len(p) {
		n, err := unix.Pread(f.fd, p[done:], off+int64(done))
		switch {
		case err == unix.EINTR:
			continue
		case err != nil:
			return done, pathErr("read", f.name, err)
		case n == 0:
			return done, io.EOF
		}
		if done += n; n%pastAlign != 0 && done < len(p) {
			return done, io.EOF // only the end of a file is no whole page
		}
	}
	return done, nil
}

func (f *osFile) setDirect(on bool) error {
	flag := 0
	if on {
		flag = unix.O_DIRECT
	}
	_, err := unix.FcntlInt(uintptr(f.fd), unix.F_SETFL, flag)
	return err
}

// Cached implements [PastReader]. A kernel that does not say (before 6.5) has
// them all, so that nothing changes there.
func (f *osFile) Cached(off, n int64) bool {
	var st unix.Cachestat_t
	err := unix.Cachestat(uint(f.fd), &unix.CachestatRange{Off: uint64(off), Len: uint64(n)}, &st, 0)
	return err != nil || int64(st.Cache)*pastAlign*2 >= n
}
