package disk

import "errors"

// faultFile is an open file of a Fault file system.
type faultFile struct {
	fs   *faultFS
	file File
	name string
}

func (f *faultFile) ReadAt(p []byte, off int64) (int, error) {
	if err := f.fs.fail(OpRead, f.name); err != nil {
		return 0, err
	}
	return f.file.ReadAt(p, off)
}

func (f *faultFile) WriteAt(p []byte, off int64) (int, error) {
	err := f.fs.fail(OpWrite, f.name)
	if err == nil {
		return f.file.WriteAt(p, off)
	}
	var short *ShortWrite
	if !errors.As(err, &short) {
		return 0, err
	}
	n, werr := f.file.WriteAt(p[:min(len(p), short.N)], off)
	if werr != nil {
		return n, werr
	}
	return n, pathErr(string(OpWrite), f.name, short.Err)
}

func (f *faultFile) Truncate(size int64) error {
	if err := f.fs.fail(OpTruncate, f.name); err != nil {
		return err
	}
	return f.file.Truncate(size)
}

func (f *faultFile) Sync() error {
	err := f.fs.fail(OpSync, f.name)
	if err == nil {
		return f.file.Sync()
	}
	if m, ok := f.file.(interface{ forget() }); ok {
		m.forget()
	}
	return err
}

func (f *faultFile) WriteOut(off, n int64) error {
	if err := f.fs.fail(OpWriteOut, f.name); err != nil {
		return err
	}
	return f.file.WriteOut(off, n)
}

func (f *faultFile) Allocate(off, n int64, keepSize bool) error {
	if err := f.fs.fail(OpAllocate, f.name); err != nil {
		return err
	}
	return f.file.Allocate(off, n, keepSize)
}

func (f *faultFile) Size() (int64, error) {
	if err := f.fs.fail(OpStat, f.name); err != nil {
		return 0, err
	}
	return f.file.Size()
}

func (f *faultFile) Close() error { return f.file.Close() }
