from typing import final

@final
class FastRows: ...
