//! Arrays of Fortran: their indices begin with 1 or with what the program says, and the first index is
//! that of neighbours in memory.

use std::process::Command;

use capriole_dwarf::DebugInfo as _;
use capriole_testkit::objects::open;
use capriole_testkit::stopped::check;
use capriole_testkit::workshop::{Workshop, run};

const SOURCE: &str = "module m
contains
subroutine s(a, b, g, z, n)
  real(8), intent(in) :: a(:)
  integer(4), intent(in) :: b(5)
  integer(4), intent(in) :: g(2, 3)
  integer(4), intent(in) :: z(-1:1)
  integer(4), intent(in) :: n
  print *, a(3), b(3), g(2, 3), z(-1), n
end subroutine
end module
program p
  use m
  real(8) :: x(4) = [1.5d0, 2.5d0, 3.5d0, 4.5d0]
  integer(4) :: y(5) = [10, 20, 30, 40, 50]
  integer(4) :: g(2, 3) = reshape([11, 21, 12, 22, 13, 23], [2, 3])
  integer(4) :: z(-1:1) = [-7, 0, 7]
  call s(x, y, g, z, 7)
end program
";

#[test]
fn arrays_have_the_bounds_of_the_source() {
    let workshop = Workshop::new();
    let input = workshop.path("arrays.f90");
    std::fs::write(&input, SOURCE).unwrap();
    let program = workshop.path("arrays");
    let mut command = Command::new("gfortran");
    command.current_dir(workshop.path(""));
    command.args(["-g", "-O0", "-o"]).args([&program, &input]);
    if !run(&mut command) {
        return;
    }
    let object = open(&program);
    let debug = object.debug().unwrap();
    let address = debug.functions("__m_MOD_s").unwrap()[0].address;
    let unknown = "error 1: only the program knows where the elements of `a` (real(kind=8) []) are: its \
                   address, bounds or steps are in a descriptor; pass it to a function that takes it with \
                   fixed bounds, and probe that";
    let expected = [
        ("n", "7"),
        ("b", "{10,20,30,40,50}"),
        ("b[1]", "10"),
        ("b[5]", "50"),
        ("*b", "10"),
        ("b[0]", "error 1: indices of the array are 1 to 5"),
        ("b[6]", "error 1: indices of the array are 1 to 5"),
        ("g[2][1]", "21"),
        ("g[1][2]", "12"),
        ("g[2][3]", "23"),
        ("g[3][1]", "error 1: indices of the array are 1 to 2"),
        ("z", "{-7,0,7}"),
        ("z[-1]", "-7"),
        ("z[1]", "7"),
        ("z[2]", "error 1: indices of the array are -1 to 1"),
        ("a[1]", unknown),
    ];
    check(&program, address, None, &expected);
    let whole = debug.site(address, None).unwrap();
    for text in ["a", "g[1]", "g"] {
        let found = capriole_testkit::stopped::ask(&debug, &whole, text, None);
        assert!(found.is_err(), "{text}: {found:?}");
    }
}
