"""The tensor types as type checkers and editors see them; nothing imports this file when a program runs.

A value with the hint `Float32[1000]` is an array, a torch tensor or a list, so each type must accept every value and
have every attribute. For mypy the types must be `Any`, because mypy refuses numbers in the brackets of a class. For
pyright, the checker of VS Code, the types must be classes, because pyright refuses variables in hints. A protocol
without members accepts every value, and a class that inherits from `Any` has every attribute.
"""

from collections.abc import Sequence
from typing import Any, Literal, Protocol

MYPY: bool  # mypy takes this name for true; pyright takes the last definition of each type

if MYPY:
    Bool: Any
    Uint8: Any
    Uint16: Any
    Uint32: Any
    Uint64: Any
    Int8: Any
    Int16: Any
    Int32: Any
    Int64: Any
    Float16: Any
    BFloat16: Any
    Float32: Any
    Float64: Any
    Bytes: Any
    Image: Any
else:
    class _Type(type):  # methods of a metaclass: values of the types need not have them
        def prepared(
            cls,
            *,
            color: Literal["RGB", "BGR", "GRAY"] = ...,
            channels: Literal["strict", "convert"] = ...,
            exif: Literal["ignore", "apply"] = ...,
            resize: Literal["linear", "opencv", "area", "pillow", "letterbox", "none"] = ...,
            shorter_side: int = ...,
            resize_to: Sequence[int] = ...,
            min_side: int = ...,
            max_side: int = ...,
            multiple: int = ...,
            rounding: Literal["nearest", "down", "up"] = ...,
            pad: float | Sequence[float] = ...,
            align: Literal["center", "start"] = ...,
            scale: float = ...,
            mean: Sequence[float] = ...,
            std: Sequence[float] = ...,
            arithmetic: Literal["fast", "exact"] = ...,
            reduced: Literal["off", "auto"] = ...,
            formats: Sequence[Literal["jpeg", "png"]] = ...,
            model_layout: Literal["NHWC", "NCHW"] = ...,
            datatype: str = ...,
        ) -> Any:
            """Return this type for encoded images, prepared as the keys of `image:` in model.yaml say."""

        def padded(
            cls,
            *,
            value: float = ...,
            multiple: int = ...,
            mask: str = ...,
            waste: float = ...,
            exact: bool = ...,
        ) -> Any:
            """Return this type padded as the keys of `pad:` in model.yaml say."""

        def file(cls, content_type: str) -> Any:
            """Return this type for an output whose elements are files, such as "audio/wav"."""

    class _Tensor(Any, Protocol, metaclass=_Type):  # pyright: ignore
        def __class_getitem__(cls, sizes: Any) -> Any: ...

    class Bool(_Tensor, Protocol):  # pyright: ignore
        """BOOL: booleans. `Bool[3]` is three for each row, `Bool` alone is one."""

    class Uint8(_Tensor, Protocol):  # pyright: ignore
        """UINT8: unsigned 8-bit integers. `Uint8[3]` is three for each row, `Uint8` alone is one."""

    class Uint16(_Tensor, Protocol):  # pyright: ignore
        """UINT16: unsigned 16-bit integers. `Uint16[3]` is three for each row, `Uint16` alone is one."""

    class Uint32(_Tensor, Protocol):  # pyright: ignore
        """UINT32: unsigned 32-bit integers. `Uint32[3]` is three for each row, `Uint32` alone is one."""

    class Uint64(_Tensor, Protocol):  # pyright: ignore
        """UINT64: unsigned 64-bit integers. `Uint64[3]` is three for each row, `Uint64` alone is one."""

    class Int8(_Tensor, Protocol):  # pyright: ignore
        """INT8: 8-bit integers. `Int8[3]` is three for each row, `Int8` alone is one."""

    class Int16(_Tensor, Protocol):  # pyright: ignore
        """INT16: 16-bit integers. `Int16[3]` is three for each row, `Int16` alone is one."""

    class Int32(_Tensor, Protocol):  # pyright: ignore
        """INT32: 32-bit integers. `Int32[3]` is three for each row, `Int32` alone is one."""

    class Int64(_Tensor, Protocol):  # pyright: ignore
        """INT64: 64-bit integers. `Int64[3]` is three for each row, `Int64` alone is one."""

    class Float16(_Tensor, Protocol):  # pyright: ignore
        """FP16: 16-bit floats. `Float16[3]` is three for each row, `Float16` alone is one."""

    class BFloat16(_Tensor, Protocol):  # pyright: ignore
        """BF16: bfloat16 numbers, as their 16-bit patterns. `BFloat16[3]` is three for each row, `BFloat16` alone is one."""

    class Float32(_Tensor, Protocol):  # pyright: ignore
        """FP32: 32-bit floats. `Float32[3]` is three for each row, `Float32` alone is one."""

    class Float64(_Tensor, Protocol):  # pyright: ignore
        """FP64: 64-bit floats. `Float64[3]` is three for each row, `Float64` alone is one."""

    class Bytes(_Tensor, Protocol):  # pyright: ignore
        """BYTES: texts or files, one for each row, or `Bytes[3]` for three."""

    class Image(_Tensor, Protocol):  # pyright: ignore
        """`Image[height, width, channels]`: FP32, RGB from 0 to 255, of JPEG or PNG files of any size and colours."""
